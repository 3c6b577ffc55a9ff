"""CoreProcess: the front's handle on the core's process."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

import msgspec

from octavo.config import EngineConfig
from octavo.engine.messages import CoreMessage, FrontMessage, Shutdown, core_decoder, encoder
from octavo.engine.pulse import Pulse
from octavo.engine.recorder import FlightRecorder

logger = logging.getLogger("octavo.engine")


class CoreProcess:
    """Starts a core and exchanges messages with it, without ever blocking the event loop.

    `on_message` and `on_exit` are called on the event loop that called `start`; `on_exit` once, with the exit code
    (negative: the signal that killed it), after the last message.

    A socket pair rather than a named socket: nothing is left behind on disk, and either side learns of the other's
    death from the kernel at once.
    """

    def __init__(
        self,
        config: EngineConfig,
        pulse: Pulse,
        recorder: FlightRecorder,
        on_message: Callable[[CoreMessage], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self._config = config
        self._shared = (pulse, recorder)
        self._on_message = on_message
        self._on_exit = on_exit
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._encoder = encoder()
        self._process: subprocess.Popen[bytes] | None = None
        self._exited = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            inherited = (theirs.fileno(), *(one.fileno() for one in self._shared))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "octavo.engine.process", *map(str, inherited)],
                pass_fds=inherited,
                env=core_environment(os.environ),
            )
        connection = Connection(ours.detach())
        self._outbox.put(self._config.model_dump_json().encode())
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._write, args=(connection,), name="octavo-writer", daemon=True).start()
        threading.Thread(target=self._read, args=(connection, loop), name="octavo-reader", daemon=True).start()

    def send(self, message: FrontMessage) -> None:
        """Queues a message; never blocks. To a dead core it goes nowhere: `on_exit` tells."""
        self._outbox.put(self._encoder.encode(message))

    async def stop(self, timeout_seconds: float = 10.0) -> None:
        """Ends the process: asked first, killed after `timeout_seconds`. Returns when it is gone."""
        if self._process is None:
            return
        self.send(Shutdown())
        try:
            await asyncio.wait_for(self._exited.wait(), timeout_seconds)
        except TimeoutError:
            logger.warning("the core did not end within %.0f s; killing it", timeout_seconds)
            self.kill()
            await self._exited.wait()

    def kill(self) -> None:
        """Ends the process now."""
        if self._process is not None:
            self._process.kill()

    def _write(self, connection: Connection) -> None:
        while (frame := self._outbox.get()) is not None:
            try:
                connection.send_bytes(frame)
            except OSError:
                return

    def _read(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        decoder = core_decoder()
        try:
            while True:
                message = decoder.decode(connection.recv_bytes())
                loop.call_soon_threadsafe(self._on_message, message)
        except (EOFError, OSError):
            pass
        except msgspec.MsgspecError:
            logger.exception("an unreadable message from the core")
            self.kill()
        except RuntimeError:
            # The event loop is closed: the program ends without having stopped the engine.
            self.kill()
            return
        finally:
            self._outbox.put(None)
            connection.close()
        if self._process is None:
            return
        code = self._process.wait()
        try:
            loop.call_soon_threadsafe(self._gone, code)
        except RuntimeError:
            return

    def _gone(self, code: int) -> None:
        self._exited.set()
        self._on_exit(code)


def core_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The core's environment: as given, but OpenMP threads that wait for each other soon sleep instead of spinning.

    A server shares its cores, with its own front at least. A thread that spins at a barrier keeps the core from the
    thread it waits for: with one busy process beside two compute threads, decoding fell from 30 to under 4 tokens a
    second, and to 12 with this; alone it costs a tenth. Whoever sets one of the two variables is left alone.
    """
    if "GOMP_SPINCOUNT" in environ or "OMP_WAIT_POLICY" in environ:
        return dict(environ)
    return {**environ, "GOMP_SPINCOUNT": "5000"}


def how_it_ended(code: int, *, out_of_memory: bool | None) -> str:
    """A sentence for a process's exit code.

    Args:
        out_of_memory: whether the kernel killed for want of memory meanwhile; None if that cannot be known.
    """
    if code >= 0:
        return f"the engine core's process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ""
    if -code == signal.SIGKILL:
        hint = {None: "; was it out of memory?", True: ", for want of memory", False: ", from outside"}[out_of_memory]
    return f"the engine core's process was killed by {name}{hint}"
