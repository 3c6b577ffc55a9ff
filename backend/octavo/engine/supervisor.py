"""Supervisor: keeps a core running. Starts it, watches its pulse, and starts another when it has died."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path
from typing import Protocol

import msgspec

from octavo import errors
from octavo.config import EngineConfig
from octavo.engine.core_process import CoreProcess, how_it_ended
from octavo.engine.messages import CoreFailed, CoreMessage, CoreReady, FrontMessage
from octavo.engine.pulse import Pulse
from octavo.engine.recorder import FlightRecorder, RecordedStep
from octavo.engine.restarts import RestartBudget
from octavo.errors import EngineDeadError, OctavoError
from octavo.observe.oom import oom_kills

logger = logging.getLogger("octavo.engine")

# Time for a stalled core to write where it hangs, before it is killed.
_DUMP_SECONDS = 0.5
_LONGEST_LOOK = 1.0


class CoreEvents(Protocol):
    """What the supervisor tells; all on the event loop it was started on."""

    def on_message(self, message: CoreMessage) -> None: ...

    def on_down(self, reason: str, batch: frozenset[int]) -> None:
        """The core is gone, and another will be started.

        Args:
            batch: marks of the requests in whose step it died; empty if it was killed from outside.
        """

    def on_up(self) -> None:
        """Another core is ready; it knows of no request."""

    def on_dead(self, reason: str) -> None:
        """The core is gone for good."""


class Supervisor:
    """One core after another, until `stop` or until restarts are of no use any more."""

    def __init__(self, config: EngineConfig, events: CoreEvents) -> None:
        self._config = config
        self._events = events
        self._budget = RestartBudget(config.max_restarts, config.restart_window)
        self._core: CoreProcess | None = None
        self._pulse: Pulse | None = None
        self._recorder: FlightRecorder | None = None
        self._failure: CoreFailed | None = None
        self._started: asyncio.Future[CoreReady] | None = None
        self._oom_kills: int | None = None
        self._stopping = False
        self._stalled: str | None = None
        self._watch: asyncio.Task[None] | None = None
        self._restart: asyncio.TimerHandle | None = None
        self.num_restarts = 0

    @property
    def pid(self) -> int | None:
        return self._core.pid if self._core is not None else None

    def launch(self) -> None:
        """Starts the first core; `ready` tells when it is up."""
        self._started = asyncio.get_running_loop().create_future()
        self._watch = asyncio.create_task(self._watch_pulse())
        self._start_core()

    async def ready(self) -> CoreReady:
        """Waits for the first core.

        Raises:
            ConfigError: the model cannot be served with these options.
            EngineDeadError: the core ended for another reason.
        """
        if self._started is None:
            raise RuntimeError("no core has been launched")
        return await self._started

    def recent_steps(self, count: int) -> list[RecordedStep]:
        """The last steps of the core there is, or was last; oldest first."""
        return self._recorder.read(count) if self._recorder is not None else []

    def send(self, message: FrontMessage) -> None:
        """To the core there is now; what is sent while there is none is lost."""
        if self._core is not None:
            self._core.send(message)

    async def stop(self) -> None:
        """Ends the core for good."""
        self.abandon()
        if self._core is not None:
            await self._core.stop()

    def abandon(self) -> None:
        """No restarts from now on."""
        self._stopping = True
        if self._restart is not None:
            self._restart.cancel()
        if self._watch is not None:
            self._watch.cancel()

    def kill(self) -> None:
        """Ends the core now, and for good."""
        self.abandon()
        if self._core is not None:
            self._core.kill()

    def _start_core(self) -> None:
        self._failure = self._stalled = None
        self._oom_kills = oom_kills()
        for page in (self._pulse, self._recorder):
            if page is not None:
                page.close()
        self._pulse = Pulse.create(self._config.max_num_seqs)
        self._recorder = FlightRecorder.create()
        self._core = CoreProcess(self._config, self._pulse, self._recorder, self._on_message, self._on_exit)
        self._core.start()

    def _on_message(self, message: CoreMessage) -> None:
        if isinstance(message, CoreFailed):
            self._failure = message
        elif isinstance(message, CoreReady):
            if self._started is not None and not self._started.done():
                self._started.set_result(message)
            else:
                self._events.on_up()
        else:
            self._events.on_message(message)

    def _on_exit(self, code: int) -> None:
        if self._stopping:
            return
        starved = self._out_of_memory()
        how = how_it_ended(code, out_of_memory=starved)
        reason = self._stalled or (self._failure.message if self._failure is not None else how)
        if self._started is not None and not self._started.done():
            self.abandon()
            self._started.set_exception(self._start_error(reason))
            return
        # Killed by hand or by a service manager, not by the kernel or by us: no request is to blame for that.
        blameless = code == -signal.SIGKILL and starved is False and self._stalled is None
        beat = self._pulse.read() if self._pulse is not None and not blameless else None
        self._dump_steps()
        self._events.on_down(reason, beat.batch if beat is not None else frozenset())
        pause = self._budget.take(time.monotonic())
        if pause is None:
            self.abandon()
            self._events.on_dead(
                f"{reason}; it was started again {self._config.max_restarts} times in the last "
                f"{self._config.restart_window:g} s, and is left dead now"
            )
            return
        self.num_restarts += 1
        logger.error("the engine's core died (%s); starting another in %g s", reason, pause)
        self._restart = asyncio.get_running_loop().call_later(pause, self._start_core)

    def _dump_steps(self) -> None:
        if self._config.debug_dir is None or self._recorder is None:
            return
        path = Path(self._config.debug_dir) / f"octavo-steps-{time.strftime('%Y%m%dT%H%M%S')}-{self.pid}.jsonl"
        lines = [msgspec.json.encode(step) for step in self._recorder.read()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"\n".join([*lines, b""]))
        except OSError as error:
            logger.warning("the last steps could not be written to '%s': %s", path, error)
            return
        logger.error("the core's last %d steps are in '%s'", len(lines), path)

    def _out_of_memory(self) -> bool | None:
        now = oom_kills()
        return None if now is None or self._oom_kills is None else now > self._oom_kills

    def _start_error(self, reason: str) -> OctavoError:
        kind = getattr(errors, self._failure.kind, None) if self._failure is not None else None
        error: OctavoError = kind(reason) if kind is not None else EngineDeadError(reason)
        return error

    async def _watch_pulse(self) -> None:
        """Kills a core that is in one step for longer than any step can take."""
        timeout = self._config.stall_timeout
        seen: tuple[CoreProcess | None, int] = (None, -1)
        since = time.monotonic()
        while True:
            await asyncio.sleep(min(_LONGEST_LOOK, timeout / 4))
            beat = self._pulse.read() if self._pulse is not None else None
            if beat is None or not beat.busy or (self._core, beat.steps) != seen:
                seen, since = (self._core, beat.steps if beat is not None else -1), time.monotonic()
            elif time.monotonic() - since >= timeout and self._stalled is None:
                await self._end_stalled(f"the core has been in one step for {timeout:g} s (stall_timeout)")

    async def _end_stalled(self, reason: str) -> None:
        core = self._core
        if core is None or core.pid is None:
            return
        self._stalled = reason
        logger.error("%s; its stack follows, then it is killed", reason)
        os.kill(core.pid, signal.SIGUSR1)
        await asyncio.sleep(_DUMP_SECONDS)
        core.kill()
