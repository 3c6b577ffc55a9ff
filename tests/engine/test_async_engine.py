"""AsyncEngine over a real core process: streaming, aborts, rejection, death, drain."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from octavo import LLM, AsyncEngine, EngineConfig, SamplingParams
from octavo.errors import ConfigError, EngineDeadError, EngineStoppedError, RequestError
from octavo.outputs import RequestOutput

pytestmark = pytest.mark.server

POOL = 64 << 10
KNOBS: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "kv_cache_memory_bytes": 4 << 20, "log_level": "warning"}
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


@pytest.fixture
async def engine(tiny_model_path: Path) -> AsyncIterator[AsyncEngine]:
    one = AsyncEngine(EngineConfig(model=str(tiny_model_path), **KNOBS))
    await one.start()
    yield one
    await one.shutdown()


async def collect(engine: AsyncEngine, prompt: Any, params: SamplingParams, **options: Any) -> list[RequestOutput]:
    return [output async for output in engine.generate(prompt, params, **options)]


async def settled(engine: AsyncEngine) -> None:
    """Waits until the core has told that nothing runs or waits and no block is owned."""
    names = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]
    for _ in range(200):
        text = engine.metrics.render()[0].decode()
        values = [float(line.split()[-1]) for line in text.splitlines() if line.startswith(tuple(names))]
        if len(values) == len(names) and not any(values):
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"still busy: {values}")


def core_pid(engine: AsyncEngine) -> int:
    children = [p for p in psutil.Process().children() if "octavo.engine.process" in " ".join(p.cmdline())]
    assert len(children) == 1
    return children[0].pid


async def test_streams_equal_the_offline_output(engine: AsyncEngine, tiny_model_path: Path) -> None:
    prompts = ["the quick brown fox", "世界 🎉", "a", "the dog " * 20]
    params = [
        SamplingParams(temperature=t, seed=7, max_tokens=30, n=n, logprobs=1, ignore_eos=True)
        for t, n in ((0, 1), (1, 2), (0.7, 3), (0, 1))
    ]
    streams = await asyncio.gather(*(collect(engine, p, q) for p, q in zip(prompts, params, strict=True)))
    with LLM(str(tiny_model_path), **KNOBS) as llm:
        whole = llm.generate(prompts, params, use_tqdm=False)
    for stream, want in zip(streams, whole, strict=True):
        assert [output.finished for output in stream] == [False] * (len(stream) - 1) + [True]
        for one in want.outputs:
            parts = [part for output in stream for part in output.outputs if part.index == one.index]
            assert "".join(part.text for part in parts) == one.text
            assert [token for part in parts for token in part.token_ids] == one.token_ids
            assert parts[-1].finish_reason == one.finish_reason == "length"
            assert parts[-1].cumulative_logprob == pytest.approx(one.cumulative_logprob)
        assert stream[-1].num_output_tokens == 30 * len(want.outputs)


async def test_closing_a_stream_frees_the_request(engine: AsyncEngine) -> None:
    stream = engine.generate("the fox", LONG)
    await anext(stream)
    await stream.aclose()
    assert engine.num_unfinished == 0
    await settled(engine)


async def test_cancelling_the_task_frees_a_waiting_request(tiny_model_path: Path) -> None:
    engine = AsyncEngine(EngineConfig(model=str(tiny_model_path), max_num_seqs=1, **KNOBS))
    await engine.start()
    running = asyncio.create_task(collect(engine, "the fox", LONG))
    waiting = asyncio.create_task(collect(engine, "the dog", LONG))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await running)[-1].num_output_tokens == 400
    await settled(engine)
    await engine.shutdown()


async def test_abort_ends_the_stream_with_its_reason(engine: AsyncEngine) -> None:
    stream = engine.generate("the fox", LONG, "mine")
    first = await anext(stream)
    assert not first.finished
    await engine.abort("mine")
    await engine.abort("nobody")
    rest = [output async for output in stream]
    assert rest[-1].finished
    assert rest[-1].outputs[0].finish_reason == "abort"
    await settled(engine)


async def test_bad_requests_harm_no_other(engine: AsyncEngine) -> None:
    good = asyncio.create_task(collect(engine, "the fox", LONG))
    for prompt, params in (
        ([], SamplingParams()),
        ([10**6], SamplingParams()),
        ("", SamplingParams()),
        ([1] * 512, SamplingParams()),
        ("x", SamplingParams(logit_bias={10**6: 1})),
    ):
        with pytest.raises(RequestError):
            await collect(engine, prompt, params)
    assert len((await good)[-1].outputs) == 1
    assert engine.status().state == "ready"


async def test_a_prompt_that_can_never_fit_the_pool(tiny_model_path: Path) -> None:
    # 2 layers, keys and values, 2 heads of 16, float32: 512 bytes a token, so 64 KiB are 8 blocks of 16.
    engine = AsyncEngine(EngineConfig(model=str(tiny_model_path), **{**KNOBS, "kv_cache_memory_bytes": POOL}))
    await engine.start()
    with pytest.raises(RequestError, match=r"200.*128|128.*200"):
        await collect(engine, [5] * 200, LONG)
    done = await collect(engine, [5] * 100, SamplingParams(max_tokens=20, ignore_eos=True))
    assert done[-1].num_output_tokens == 20
    await settled(engine)
    await engine.shutdown()


async def test_request_id_in_use(engine: AsyncEngine) -> None:
    stream = engine.generate("the fox", LONG, "same")
    await anext(stream)
    with pytest.raises(RequestError, match="'same' is in use"):
        await collect(engine, "the dog", LONG, request_id="same")
    await stream.aclose()


async def test_a_killed_core_fails_all_at_once_and_for_good(tiny_model_path: Path) -> None:
    engine = AsyncEngine(EngineConfig(model=str(tiny_model_path), max_restarts=0, **KNOBS))
    await engine.start()
    tasks = [asyncio.create_task(collect(engine, "the fox", LONG)) for _ in range(4)]
    await asyncio.sleep(0.1)
    start = time.monotonic()
    os.kill(core_pid(engine), signal.SIGKILL)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert time.monotonic() - start < 1
    assert all(isinstance(result, EngineDeadError) and "SIGKILL" in str(result) for result in results)
    assert engine.status().state == "dead"
    assert "SIGKILL" in engine.status().reason
    with pytest.raises(EngineDeadError):
        await collect(engine, "the fox", LONG)
    assert engine.num_unfinished == 0
    await engine.shutdown()


async def test_drain_lets_streams_finish_and_takes_no_more(engine: AsyncEngine) -> None:
    short = asyncio.create_task(collect(engine, "the fox", SamplingParams(max_tokens=20, ignore_eos=True)))
    await asyncio.sleep(0.02)
    draining = asyncio.create_task(engine.drain(10))
    await asyncio.sleep(0)
    assert engine.status().state == "draining"
    with pytest.raises(EngineStoppedError):
        await collect(engine, "the dog", LONG)
    await draining
    assert (await short)[-1].outputs[0].finish_reason == "length"


async def test_drain_aborts_what_outlasts_its_deadline(engine: AsyncEngine) -> None:
    long = asyncio.create_task(collect(engine, "the fox", LONG))
    await asyncio.sleep(0.05)
    await engine.drain(0.01)
    assert (await long)[-1].outputs[0].finish_reason == "abort"


async def test_shutdown_leaves_no_process(tiny_model_path: Path) -> None:
    engine = AsyncEngine(EngineConfig(model=str(tiny_model_path), **KNOBS))
    await engine.start()
    pid = core_pid(engine)
    task = asyncio.create_task(collect(engine, "the fox", LONG))
    await asyncio.sleep(0.05)
    await engine.shutdown()
    with pytest.raises(EngineStoppedError):
        await task
    assert not psutil.pid_exists(pid)


async def test_a_model_that_is_not_there() -> None:
    engine = AsyncEngine(EngineConfig(model="/nowhere/at/all", **KNOBS))
    with pytest.raises(ConfigError, match="/nowhere/at/all"):
        await engine.start()
    assert engine.status().state == "dead"


async def test_an_error_while_loading_reaches_the_caller(tiny_model_path: Path) -> None:
    engine = AsyncEngine(EngineConfig(model=str(tiny_model_path), max_model_len=100_000, **KNOBS))
    with pytest.raises(ConfigError, match="100000"):
        await engine.start()
    await engine.shutdown()


def test_the_core_ends_when_its_front_is_killed(tiny_model_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import asyncio, psutil
        from octavo import AsyncEngine, EngineConfig
        async def main():
            engine = AsyncEngine(EngineConfig(model={str(tiny_model_path)!r}, **{KNOBS!r}))
            await engine.start()
            print(psutil.Process().children()[0].pid, flush=True)
            await asyncio.sleep(60)
        asyncio.run(main())
        """
    )
    front = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert front.stdout is not None
    core = psutil.Process(int(front.stdout.readline()))
    front.kill()
    front.wait()
    psutil.wait_procs([core], timeout=5)
    assert not core.is_running() or core.status() == psutil.STATUS_ZOMBIE
