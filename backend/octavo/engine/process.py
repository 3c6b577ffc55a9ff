"""The core in a process of its own: HTTP, JSON and tokenising cannot steal the interpreter from the step loop, and
its memory comes back when it goes.

Run as `python -m octavo.engine.process FD PULSE RECORDER`, FD being one end of a socket pair, the others descriptors of
a Pulse's and a FlightRecorder's files. The first frame is the EngineConfig as JSON; then come FrontMessages, and
CoreMessages go back. The process ends on Shutdown, when the other end closes (the front is gone), or after a CoreFailed
of its own. On SIGUSR1 it writes the stacks of its threads to standard error.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

import msgspec

from octavo.config import EngineConfig
from octavo.core.request import SchedulerStats, SequenceOutput
from octavo.core.step import StepPlan
from octavo.engine.loop import EngineLoop
from octavo.engine.messages import (
    Abort,
    AddRequest,
    CoreFailed,
    CoreMessage,
    CoreReady,
    FrontMessage,
    RequestRejected,
    Shutdown,
    StepOutputs,
    encoder,
    front_decoder,
)
from octavo.engine.pulse import Pulse, mark_of
from octavo.engine.recorder import FlightRecorder, StepTimes
from octavo.errors import ConfigError, RequestError
from octavo.observe.logs import setup_logging

logger = logging.getLogger("octavo.core")


class CoreServer:
    """Runs an EngineLoop behind a connection. One thread reads; the main thread steps and writes."""

    def __init__(self, connection: Connection, pulse: Pulse, recorder: FlightRecorder) -> None:
        self._connection = connection
        self._pulse = pulse
        self._recorder = recorder
        self._encoder = encoder()
        self._inbox: queue.SimpleQueue[FrontMessage] = queue.SimpleQueue()
        self._step_id = 0
        # For tests of what happens then: a request with this token in its prompt ends the process, or raises.
        token, _, self._crash_kind = os.environ.get("OCTAVO_TEST_CRASH_TOKEN", "").partition(":")
        self._crash_token = int(token) if token else None

    def run(self) -> int:
        """Serves until told to stop; returns the exit code."""
        config = EngineConfig.model_validate_json(self._connection.recv_bytes())
        setup_logging(config.log_level, log_format=config.log_format)
        threading.Thread(target=self._read, name="octavo-core-reader", daemon=True).start()
        try:
            loop = EngineLoop.build(config)
        except ConfigError as error:
            self._send(CoreFailed(error.message, type(error).__name__))
            return 1
        except Exception as error:
            logger.exception("the model could not be loaded")
            self._send(CoreFailed(f"the model could not be loaded: {type(error).__name__}: {error}"))
            return 1
        info = loop.info
        loop.observer = self
        self._send(
            CoreReady(
                num_blocks=info.num_blocks,
                block_size=info.block_size,
                max_model_len=info.max_model_len,
                vocab_size=info.vocab_size,
                architecture=info.architecture,
                dtype=info.dtype,
                weight_bytes=info.weight_bytes,
            )
        )
        try:
            self._serve(loop)
        except Exception as error:
            logger.exception("a step failed")
            self._send(CoreFailed(f"a step failed: {type(error).__name__}: {error}"))
            return 1
        loop.shutdown()
        return 0

    def _serve(self, loop: EngineLoop) -> None:
        while True:
            # Idle: sleep until something comes. Busy: take what has come meanwhile.
            changed = False
            while not self._inbox.empty() or not (loop.has_work() or changed):
                message = self._inbox.get()
                if isinstance(message, Shutdown):
                    return
                self._handle(loop, message)
                changed = True
            outputs: list[SequenceOutput] = []
            if loop.has_work():
                outputs = loop.step()
                self._pulse.end()
            self._step_id += 1
            self._send(StepOutputs(outputs, loop.scheduler_stats(), self._step_id))

    def planned(self, plan: StepPlan, plan_ms: float) -> None:
        """From the loop: what is told of a step while it is still to come is all that is known if the core dies."""
        marks = [mark_of(row.request_id) for row in plan.rows]
        self._pulse.begin(marks)
        self._recorder.begin(plan, marks, time.monotonic(), plan_ms)
        if self._crash_token is not None and any(
            self._crash_token in sequence.token_ids[: sequence.num_prompt_tokens] for sequence in plan.new
        ):
            if self._crash_kind == "raise":
                raise RuntimeError("a fault made for a test")
            os._exit(70)

    def done(self, times: StepTimes, stats: SchedulerStats) -> None:
        """From the loop."""
        self._recorder.end(times, stats.num_waiting, stats.kv_usage)

    def _handle(self, loop: EngineLoop, message: FrontMessage) -> None:
        match message:
            case AddRequest():
                try:
                    loop.add(message)
                except RequestError as error:
                    self._send(RequestRejected(message.request_id, error.message, error.param, error.code))
            case Abort():
                loop.abort(message.request_id, message.index)
            case Shutdown():
                raise RuntimeError("Shutdown is the serving loop's to handle")

    def _send(self, message: CoreMessage) -> None:
        try:
            self._connection.send_bytes(self._encoder.encode(message))
        except OSError:
            # The front is gone: nobody is left to serve.
            os._exit(0)

    def _read(self) -> None:
        decoder = front_decoder()
        try:
            while True:
                self._inbox.put(decoder.decode(self._connection.recv_bytes()))
        except (EOFError, OSError):
            # The front is gone; a step in flight or a model half loaded has no one to end it but us.
            os._exit(0)
        except msgspec.MsgspecError:
            # Without a reader the core would go on and hear nothing: better that the front learns of its end.
            logger.exception("an unreadable message from the front")
            os._exit(1)


def main() -> int:
    # Ctrl-C and a service manager's SIGTERM reach the whole process group; the front decides when the core ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    connection, pulse, recorder = map(int, sys.argv[1:])
    return CoreServer(Connection(connection), Pulse.attach(pulse), FlightRecorder.attach(recorder)).run()


if __name__ == "__main__":
    sys.exit(main())
