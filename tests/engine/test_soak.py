"""Ten thousand requests that end in every way there is: afterwards everything is where it was."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from pathlib import Path

import psutil
import pytest

from octavo import AsyncEngine, EngineConfig, SamplingParams
from octavo.errors import EngineOverloadedError, RequestError, RequestTimeoutError
from tests.engine.test_async_engine import KNOBS, core_pid, settled

pytestmark = [pytest.mark.server, pytest.mark.slow]

NUM_REQUESTS = 10_000
WARM_UP = 2_000
NUM_CLIENTS = 48
MiB = 1 << 20
SLACK = 24 * MiB
"""What the allocators of Python and C may keep for later; a request that leaked its 1 KiB prompt would show."""

KINDS = ("finish", "finish", "finish", "leave queued", "leave in prefill", "leave decoding", "abort", "bad", "late")


class Client:
    """One of many that ask at once, each request ending in a way of its own."""

    def __init__(self, engine: AsyncEngine, number: int, ends: Counter[str]) -> None:
        self._engine = engine
        self._dice = random.Random(number)
        self._ends = ends

    async def ask(self) -> None:
        kind = self._dice.choice(KINDS)
        try:
            await getattr(self, "_" + kind.replace(" ", "_"))()
            self._ends[kind] += 1
        except RequestTimeoutError:
            self._ends["timed out"] += 1
        except EngineOverloadedError:
            self._ends["refused"] += 1
            await asyncio.sleep(0.01)
        except RequestError:
            self._ends["failed"] += 1

    def _prompt(self) -> list[int]:
        return [self._dice.randrange(3, 250)] * self._dice.choice((1, 5, 30, 200))

    def _params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self._dice.choice((0.0, 1.0)),
            n=self._dice.choice((1, 1, 1, 2, 3)),
            max_tokens=self._dice.choice((1, 4, 12)),
            stop=self._dice.choice((None, ["e"])),
            logprobs=self._dice.choice((None, 2)),
        )

    async def _finish(self) -> None:
        async for _ in self._engine.generate(self._prompt(), self._params()):
            pass

    async def _leave_after(self, seconds: float) -> None:
        task = asyncio.ensure_future(anext(self._engine.generate([7] * 300, self._params())))
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _leave_queued(self) -> None:
        await self._leave_after(0)

    async def _leave_in_prefill(self) -> None:
        await self._leave_after(0.003)

    async def _leave_decoding(self) -> None:
        stream = self._engine.generate(self._prompt(), SamplingParams(max_tokens=50, ignore_eos=True))
        await anext(stream)
        await stream.aclose()

    async def _abort(self) -> None:
        name = str(self._dice.random())
        stream = self._engine.generate(self._prompt(), SamplingParams(max_tokens=200, ignore_eos=True), name)
        await anext(stream)
        await self._engine.abort(name)
        async for _ in stream:
            pass

    async def _bad(self) -> None:
        await anext(self._engine.generate([10**6], self._params()))

    async def _late(self) -> None:
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        async for _ in self._engine.generate(self._prompt(), params, timeout=0.02):
            pass


async def run(engine: AsyncEngine, count: int, ends: Counter[str]) -> None:
    left = count

    async def client(number: int) -> None:
        nonlocal left
        one = Client(engine, number, ends)
        while left > 0:
            left -= 1
            await one.ask()

    await asyncio.gather(*(client(number) for number in range(NUM_CLIENTS)))
    await settled(engine)
    gc.collect()


@pytest.mark.timeout(600)
async def test_ten_thousand_requests_leave_nothing(tiny_model_path: Path) -> None:
    knobs = {**KNOBS, "kv_cache_memory_bytes": 1 << 20, "max_num_seqs": 16, "max_queued_requests": 40}
    engine = AsyncEngine(EngineConfig(model=str(tiny_model_path), **knobs))
    await engine.start()
    front, core = psutil.Process(), psutil.Process(core_pid(engine))
    ends: Counter[str] = Counter()
    await run(engine, WARM_UP, ends)
    tasks = len(asyncio.all_tasks())
    before = [(process.memory_info().rss, process.num_fds(), process.num_threads()) for process in (front, core)]
    await run(engine, NUM_REQUESTS - WARM_UP, ends)
    after = [(process.memory_info().rss, process.num_fds(), process.num_threads()) for process in (front, core)]
    assert sum(ends.values()) == NUM_REQUESTS
    assert all(ends[kind] > 50 for kind in (*{*KINDS} - {"bad", "late"}, "failed", "timed out", "refused")), ends
    assert engine.num_unfinished == 0
    assert (engine._requests, engine._held) == ({}, set())
    assert (engine._backlog.num_sequences, engine._backlog.num_tokens) == (0, 0)
    assert len(asyncio.all_tasks()) == tasks
    for (rss, fds, threads), (rss_after, fds_after, threads_after) in zip(before, after, strict=True):
        assert (fds_after, threads_after) == (fds, threads)
        assert rss_after - rss < SLACK
    assert engine.status().state == "ready"
    await engine.shutdown()
