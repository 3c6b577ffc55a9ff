"""Responses: one thread sends everything, in order, and asks whether clients are still there."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from octavo import EngineDeadError, EngineOverloadedError, EngineStoppedError, RequestError, RequestTimeoutError
from octavo.tensors import OUTPUTS

logger = logging.getLogger("octavo.triton")

POLL_SECONDS = 0.02
"""Between two rounds of asking for cancelled requests: about a step of a small model."""

_NUMPY: Mapping[str, Any] = {"BYTES": np.object_, "FP32": np.float32, "UINT32": np.uint32, "INT64": np.int64}
_DTYPES = {spec.name: _NUMPY[spec.datatype] for spec in OUTPUTS}


class RequestCancelledError(Exception):
    """The client cancelled the request, or is gone."""


class Exchange:
    """One request of Triton's, and its way back.

    Args:
        sender: Triton's InferenceResponseSender.
        on_cancelled: called once, on another thread, if the client is gone.
    """

    def __init__(self, sender: Any, on_cancelled: Callable[[Exchange], None]) -> None:
        self.sender = sender
        self.on_cancelled = on_cancelled
        self.ended = False
        """The final response has been queued."""
        self.cancelled = False


class Responses:
    """Everything said to Triton about a request is said on one thread: asking a sender `is_cancelled` while its final
    response is sent, or after that, ends the whole tritonserver with a segmentation fault.

    Args:
        pb_utils: Triton's module `triton_python_backend_utils`.
    """

    def __init__(self, pb_utils: Any) -> None:
        self._pb_utils = pb_utils
        self._queue: queue.SimpleQueue[tuple[Exchange, Any, bool] | None] = queue.SimpleQueue()
        self._open: dict[int, Exchange] = {}
        self._thread = threading.Thread(target=self._run, name="octavo-responses", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def open(self, exchange: Exchange) -> None:
        """From now on its client is watched, until its final response is queued."""
        self._open[id(exchange)] = exchange

    def put(self, exchange: Exchange, tensors: Mapping[str, list[Any]], *, final: bool) -> None:
        """Queues a response. Raises RuntimeError after the final one."""
        self._enqueue(exchange, tensors, final)

    def fail(self, exchange: Exchange, error: BaseException) -> None:
        """Queues the final response as an error."""
        self._enqueue(exchange, error, final=True)

    def stop(self) -> None:
        """Sends what is queued, and ends the thread."""
        self._queue.put(None)
        self._thread.join()

    def _enqueue(self, exchange: Exchange, content: Any, final: bool) -> None:
        if exchange.ended:
            raise RuntimeError("a response after the final one")
        if final:
            exchange.ended = True
            self._open.pop(id(exchange), None)
        self._queue.put((exchange, content, final))

    def _run(self) -> None:
        asked = time.monotonic()
        while True:
            try:
                item = self._queue.get(timeout=POLL_SECONDS)
            except queue.Empty:
                self._ask()
                asked = time.monotonic()
                continue
            if item is None:
                return
            self._send(*item)
            if time.monotonic() - asked > POLL_SECONDS:
                self._ask()
                asked = time.monotonic()

    def _send(self, exchange: Exchange, content: Any, final: bool) -> None:
        flags = self._pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        try:
            exchange.sender.send(self._response(content), flags=flags)
        except Exception:
            # Of one request; the others' responses are behind it in the queue.
            logger.exception("a response could not be sent")

    def _response(self, content: Any) -> Any:
        pb_utils = self._pb_utils
        if isinstance(content, BaseException):
            return pb_utils.InferenceResponse(error=self._error(content))
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, _array(name, values)) for name, values in content.items()]
        )

    def _error(self, error: BaseException) -> Any:
        kinds = self._pb_utils.TritonError
        codes = {
            RequestError: kinds.INVALID_ARG,
            RequestTimeoutError: kinds.CANCELLED,
            EngineOverloadedError: kinds.UNAVAILABLE,
            EngineStoppedError: kinds.UNAVAILABLE,
            EngineDeadError: kinds.UNAVAILABLE,
            RequestCancelledError: kinds.CANCELLED,
        }
        code = next((code for kind, code in codes.items() if isinstance(error, kind)), kinds.INTERNAL)
        return kinds(str(error), code)

    def _ask(self) -> None:
        for exchange in list(self._open.values()):
            if not exchange.cancelled and exchange.sender.is_cancelled():
                exchange.cancelled = True
                exchange.on_cancelled(exchange)


def _array(name: str, values: list[Any]) -> Any:
    if _DTYPES[name] is np.object_:
        return np.array([value.encode() for value in values], dtype=np.object_)
    return np.array(values, dtype=_DTYPES[name])
