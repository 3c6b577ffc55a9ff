"""Too much work, and work that takes too long: clear errors, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncEngine, EngineConfig, SamplingParams
from octavo.errors import EngineOverloadedError, RequestError, RequestTimeoutError
from tests.engine.test_async_engine import KNOBS, LONG, collect, core_pid, settled
from tests.engine.test_recovery import until

pytestmark = pytest.mark.server

SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


async def started(path: Path, **knobs: Any) -> AsyncEngine:
    engine = AsyncEngine(EngineConfig(model=str(path), **{**KNOBS, **knobs}))
    await engine.start()
    return engine


def value(engine: AsyncEngine, name: str) -> float:
    lines = engine.metrics.render()[0].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


async def test_the_queue_is_bounded(tiny_model_path: Path) -> None:
    engine = await started(tiny_model_path, max_num_seqs=2, max_queued_requests=3, max_num_batched_tokens=64)
    tasks = [asyncio.create_task(collect(engine, "the fox", LONG)) for _ in range(5)]
    await asyncio.sleep(0)
    for _ in range(3):
        with pytest.raises(EngineOverloadedError, match="max_queued_requests") as caught:
            await collect(engine, "the dog", SHORT)
        assert 1 <= caught.value.retry_after <= 60
    with pytest.raises(EngineOverloadedError):
        engine.check_accepting()
    assert value(engine, "octavo:requests_refused_total") == 4
    for task in tasks:
        assert (await task)[-1].finished
    assert (await collect(engine, "the dog", SHORT))[-1].finished
    await settled(engine)
    assert (engine._backlog.num_sequences, engine._backlog.num_tokens) == (0, 0)
    await engine.shutdown()


async def test_queued_tokens_are_bounded(tiny_model_path: Path) -> None:
    engine = await started(tiny_model_path, max_num_seqs=1, max_queued_tokens=100)
    first = asyncio.create_task(collect(engine, [5] * 300, LONG))
    await asyncio.sleep(0)
    with pytest.raises(EngineOverloadedError, match="max_queued_tokens"):
        await collect(engine, [5] * 20, SHORT)
    await first
    await collect(engine, [5] * 20, SHORT)
    await engine.shutdown()


@pytest.mark.parametrize("waiting", [False, True], ids=["running", "waiting"])
async def test_a_request_past_its_time_ends_and_is_free(tiny_model_path: Path, waiting: bool) -> None:
    engine = await started(tiny_model_path, max_num_seqs=1)
    other = asyncio.create_task(collect(engine, "the dog", LONG)) if waiting else None
    await asyncio.sleep(0)
    with pytest.raises(RequestTimeoutError, match=r"did not end within 0\.05 s"):
        await collect(engine, "the fox", LONG, timeout=0.05)
    assert value(engine, 'vllm:request_success_total{finished_reason="error"') == 1
    if other is not None:
        assert (await other)[-1].outputs[0].finish_reason == "length"
    await settled(engine)
    assert engine.num_unfinished == 0
    await engine.shutdown()


async def test_what_came_before_the_deadline_is_delivered(tiny_model_path: Path) -> None:
    engine = await started(tiny_model_path, request_timeout=2.5)
    stream = engine.generate("the fox", LONG)
    outputs = [await anext(stream)]
    await asyncio.sleep(0.05)
    os.kill(core_pid(engine), signal.SIGSTOP)
    await until(lambda: engine.num_unfinished == 0)  # a caller that does not read: its request ends all the same
    os.kill(core_pid(engine), signal.SIGCONT)
    with pytest.raises(RequestTimeoutError, match=r"2\.5 s"):
        async for output in stream:
            outputs.append(output)  # noqa: PERF401 - what came before the error counts
    assert 1 < sum(len(output.outputs[0].token_ids) for output in outputs) < 400
    assert (await collect(engine, "the fox", SHORT, timeout=60))[-1].finished
    await settled(engine)
    await engine.shutdown()


async def test_a_request_that_ended_in_error_is_not_resumed(tiny_model_path: Path) -> None:
    """A caller that had not yet looked kept it in flight, so that another core was given it again."""
    engine = await started(tiny_model_path)
    stream = engine.generate("the fox", LONG, timeout=2.5)
    await anext(stream)
    os.kill(core_pid(engine), signal.SIGSTOP)
    await until(lambda: engine.num_unfinished == 0)
    os.kill(core_pid(engine), signal.SIGKILL)
    with pytest.raises(RequestTimeoutError):
        async for _ in stream:
            pass
    assert (await collect(engine, "the dog", SHORT))[-1].finished
    assert value(engine, "vllm:generation_tokens_total") < 400
    await settled(engine)
    await engine.shutdown()


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
async def test_a_time_that_is_none(tiny_model_path: Path, timeout: float) -> None:
    engine = AsyncEngine(EngineConfig(model=str(tiny_model_path), **KNOBS))
    with pytest.raises(RequestError, match=r"timeout is .*positive number of seconds"):
        await collect(engine, "a", SHORT, timeout=timeout)
