"""A core that dies under streams: each goes on where it was, with the tokens of an undisturbed run."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncEngine, EngineConfig, SamplingParams
from octavo.errors import EngineDeadError, RequestCrashError
from octavo.outputs import RequestOutput
from tests.engine.test_async_engine import KNOBS, collect, core_pid, settled

pytestmark = pytest.mark.server

PROMPTS = ["the quick brown fox", "世界 🎉", "a", "the dog " * 20, "jumps over", "lazy"]
POISON = 290


def params(position: int, max_tokens: int = 150) -> SamplingParams:
    return SamplingParams(
        temperature=(0, 0.8)[position % 2],
        seed=position,
        n=1 + position % 3,
        max_tokens=max_tokens,
        ignore_eos=True,
        logprobs=1,
        prompt_logprobs=1 if position % 2 else None,
        stop=["qqqq"],
    )


def undisturbed(path: Path, count: int) -> list[RequestOutput]:
    with LLM(str(path), **KNOBS) as llm:
        return llm.generate(
            [PROMPTS[i % len(PROMPTS)] for i in range(count)], [params(i) for i in range(count)], use_tqdm=False
        )


def check(stream: list[RequestOutput], want: RequestOutput) -> None:
    """Tokens, text, logprobs, reasons and counts are those of the undisturbed run."""
    assert [output.finished for output in stream] == [False] * (len(stream) - 1) + [True]
    for one in want.outputs:
        parts = [part for output in stream for part in output.outputs if part.index == one.index]
        assert [token for part in parts for token in part.token_ids] == one.token_ids
        assert "".join(part.text for part in parts) == one.text
        given = [entry for part in parts for entry in part.logprobs or []]
        assert [list(entry) for entry in given] == [list(entry) for entry in one.logprobs or []]
        assert parts[-1].cumulative_logprob == pytest.approx(one.cumulative_logprob, abs=1e-3)
        assert parts[-1].finish_reason == one.finish_reason
    assert stream[-1].num_output_tokens == want.num_output_tokens
    prompts = [output.prompt_logprobs for output in stream if output.prompt_logprobs is not None]
    assert len(prompts) == (want.prompt_logprobs is not None)
    if want.prompt_logprobs is not None:
        assert [list(entry or {}) for entry in prompts[0]] == [list(entry or {}) for entry in want.prompt_logprobs]


async def engine_for(path: Path, **knobs: Any) -> AsyncEngine:
    engine = AsyncEngine(EngineConfig(model=str(path), **{**KNOBS, "max_restarts": 50, "restart_window": 0.5, **knobs}))
    await engine.start()
    return engine


async def until(condition: Any, seconds: float = 20.0) -> None:
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    pytest.fail("it did not happen in time")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
async def test_however_it_dies(tiny_model_path: Path, number: signal.Signals) -> None:
    want = undisturbed(tiny_model_path, 1)[0]
    engine = await engine_for(tiny_model_path)
    stream = engine.generate(PROMPTS[0], params(0))
    outputs = [await anext(stream)]
    os.kill(core_pid(engine), number)
    await until(lambda: engine.status().state == "recovering")
    assert number.name in engine.status().reason
    outputs += [output async for output in stream]
    check(outputs, want)
    await engine.shutdown()


@pytest.mark.slow
async def test_kills_at_random_moments_lose_nothing(tiny_model_path: Path) -> None:
    want = undisturbed(tiny_model_path, 16)
    engine = await engine_for(tiny_model_path)
    dice = random.Random(1)
    tasks = [asyncio.create_task(collect(engine, PROMPTS[i % len(PROMPTS)], params(i))) for i in range(len(want))]
    kills = 0
    while not all(task.done() for task in tasks) and kills < 4:
        await asyncio.sleep(dice.uniform(0.02, 0.25))
        await until(lambda: engine.status().state == "ready" or all(task.done() for task in tasks))
        if not all(task.done() for task in tasks):
            os.kill(core_pid(engine), signal.SIGKILL)
            kills += 1
            await until(lambda: engine.status().state == "recovering")
    assert kills >= 2
    for task, one in zip(tasks, want, strict=True):
        check(await task, one)
    await settled(engine)
    text = engine.metrics.render()[0].decode()
    assert f'octavo:core_restarts_total{{model_name="{tiny_model_path}"}} {float(kills)}' in text
    await engine.shutdown()


async def test_requests_that_come_while_there_is_no_core_wait_for_it(tiny_model_path: Path) -> None:
    want = undisturbed(tiny_model_path, 1)[0]
    engine = await engine_for(tiny_model_path)
    os.kill(core_pid(engine), signal.SIGKILL)
    await until(lambda: engine.status().state == "recovering")
    assert "SIGKILL" in engine.status().reason
    task = asyncio.create_task(collect(engine, PROMPTS[0], params(0)))
    gone = asyncio.create_task(collect(engine, PROMPTS[1], params(1)))
    await asyncio.sleep(0)
    gone.cancel()
    check(await task, want)
    assert engine.status().state == "ready"
    await settled(engine)
    await engine.shutdown()


@pytest.mark.parametrize("kind", ["exit", "raise"])
async def test_a_poisonous_request_is_refused_and_harms_no_other(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    want = undisturbed(tiny_model_path, 4)
    monkeypatch.setenv("OCTAVO_TEST_CRASH_TOKEN", f"{POISON}:{kind}")
    engine = await engine_for(tiny_model_path, max_restarts=3, restart_window=600)
    good = [asyncio.create_task(collect(engine, PROMPTS[i], params(i))) for i in range(4)]
    await asyncio.sleep(0.1)
    with pytest.raises(RequestCrashError, match="refused"):
        await collect(engine, [5, POISON], SamplingParams())
    for task, one in zip(good, want, strict=True):
        check(await task, one)
    assert engine.status().state == "ready"
    await settled(engine)
    await engine.shutdown()


async def test_past_the_bound_everything_fails_for_good(tiny_model_path: Path) -> None:
    engine = await engine_for(tiny_model_path, max_restarts=1, restart_window=600)
    task = asyncio.create_task(collect(engine, "the fox", params(0, 400)))
    for _ in range(2):
        await until(lambda: engine.status().state == "ready")
        os.kill(core_pid(engine), signal.SIGKILL)
        await until(lambda: engine.status().state != "ready")
    with pytest.raises(EngineDeadError, match=r"SIGKILL.*1 times in the last 600 s"):
        await task
    assert engine.status().state == "dead"
    await asyncio.sleep(0.3)
    assert engine.status().state == "dead"
    await engine.shutdown()


async def test_a_stalled_core_is_dumped_and_replaced(tiny_model_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    want = undisturbed(tiny_model_path, 1)[0]
    engine = await engine_for(tiny_model_path, stall_timeout=1.0)
    stream = engine.generate(PROMPTS[0], params(0))
    outputs = [await anext(stream)]
    # Stopped inside a step: nothing moves, and nothing tells but the pulse.
    pid = core_pid(engine)
    for _ in range(200):
        os.kill(pid, signal.SIGSTOP)
        beat = engine._supervisor._pulse.read()  # type: ignore[union-attr]
        if beat.busy:
            break
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.001)
    await until(lambda: engine.status().state == "recovering")
    assert "in one step for 1 s" in engine.status().reason
    outputs += [output async for output in stream]
    check(outputs, want)
    await engine.shutdown()


async def test_an_idle_core_is_no_stalled_one(tiny_model_path: Path) -> None:
    engine = await engine_for(tiny_model_path, stall_timeout=0.2)
    await collect(engine, "the fox", params(0, 20))
    await asyncio.sleep(0.8)
    assert engine.status().state == "ready"
    assert engine.metrics.render()[0].decode().count("octavo:core_restarts_total{") == 1
    assert engine._supervisor is not None
    assert engine._supervisor.num_restarts == 0
    await engine.shutdown()


async def test_drain_waits_for_streams_that_are_being_recovered(tiny_model_path: Path) -> None:
    want = undisturbed(tiny_model_path, 1)[0]
    engine = await engine_for(tiny_model_path)
    task = asyncio.create_task(collect(engine, PROMPTS[0], params(0)))
    await asyncio.sleep(0.05)
    draining = asyncio.create_task(engine.drain(20))
    await asyncio.sleep(0)
    os.kill(core_pid(engine), signal.SIGKILL)
    await draining
    check(await task, want)
    assert engine.status().state == "draining"
    await engine.shutdown()
