"""EngineThread: an AsyncEngine on an event loop of its own, for a host whose threads are not asyncio's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from octavo import AsyncEngine, EngineConfig


class EngineThread:
    """Started and stopped from any thread; coroutines given to `submit` run beside the engine.

    Args:
        on_dead: called on some thread if the engine dies for good, with the reason.
    """

    def __init__(self, config: EngineConfig, on_dead: Callable[[str], None]) -> None:
        self._on_dead = on_dead
        self.engine = AsyncEngine(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Returns when a warm-up token has come out. Raises what `AsyncEngine.start` raises."""
        self._thread.start()
        try:
            self._call(self.engine.start())
            self.submit(self._watch())
        except BaseException:
            self._end()
            raise

    def submit(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` as a task; `stop` waits for it."""
        self._loop.call_soon_threadsafe(self._begin, work)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Calls `function` on the event loop, some time soon."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def collect(self) -> tuple[list[Any], list[tuple[str, float, int]]]:
        """(the engine's metric families, what its histograms observed since the last call), gathered on its loop."""

        async def gather() -> tuple[list[Any], list[tuple[str, float, int]]]:
            metrics = self.engine.metrics
            return list(metrics.collect()), metrics.take_observations()

        families, observations = self._call(gather())
        return families, observations

    def stop(self, drain_timeout: float) -> None:
        """Lets running requests finish for `drain_timeout` seconds, aborts the others, ends the core and the thread."""
        self._call(self._shut_down(drain_timeout))
        self._end()

    async def _watch(self) -> None:
        reason = await self.engine.wait_dead()
        await asyncio.to_thread(self._on_dead, reason)

    async def _shut_down(self, drain_timeout: float) -> None:
        await self.engine.drain(drain_timeout)
        await self.engine.shutdown()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
