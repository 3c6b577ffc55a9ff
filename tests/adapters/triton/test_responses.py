"""The sending thread, with a stand-in for Triton's module where the real one cannot be made to misbehave."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from octavo import EngineDeadError, EngineOverloadedError, RequestError
from octavo_adapters.triton.responses import Exchange, RequestCancelledError, Responses


class TritonError:
    INTERNAL, INVALID_ARG, UNAVAILABLE, CANCELLED = range(4)

    def __init__(self, message: str, code: int) -> None:
        self.message, self.code = message, code


@dataclass
class InferenceResponse:
    output_tensors: list[Any] = field(default_factory=list)
    error: TritonError | None = None


@dataclass
class Tensor:
    name: str
    array: Any


class PbUtils:
    TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    TritonError = TritonError
    InferenceResponse = InferenceResponse
    Tensor = Tensor


@dataclass
class Sender:
    log: list[tuple[str, Any, int]]
    name: str
    broken: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)

    def send(self, response: InferenceResponse, flags: int) -> None:
        if self.broken:
            raise RuntimeError("the client's connection is in a bad state")
        shown = response.error or [tensor.array.tolist() for tensor in response.output_tensors]
        self.log.append((self.name, shown, flags))

    def is_cancelled(self) -> bool:
        return self.cancelled.is_set()


def test_order_finals_and_a_client_that_breaks() -> None:
    log: list[tuple[str, Any, int]] = []
    responses = Responses(PbUtils)
    responses.start()
    good, bad = (Exchange(Sender(log, name, broken=name == "bad"), lambda _: None) for name in ("good", "bad"))
    for exchange in (good, bad):
        responses.open(exchange)
    responses.put(bad, {"text_output": ["x"]}, final=False)
    responses.put(good, {"text_output": ["a", "b"], "num_output_tokens": [1, 2]}, final=False)
    responses.put(good, {"text_output": ["c", ""]}, final=True)
    with pytest.raises(RuntimeError, match="after the final one"):
        responses.put(good, {"text_output": ["d"]}, final=False)
    with pytest.raises(RuntimeError, match="after the final one"):
        responses.fail(good, RequestError("late"))
    responses.stop()
    assert log == [("good", [[b"a", b"b"], [1, 2]], 0), ("good", [[b"c", b""]], 1)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("bad"), TritonError.INVALID_ARG),
        (EngineDeadError("dead"), TritonError.UNAVAILABLE),
        (EngineOverloadedError("full", 1), TritonError.UNAVAILABLE),
        (RequestCancelledError("gone"), TritonError.CANCELLED),
        (ValueError("bug"), TritonError.INTERNAL),
    ],
)
def test_errors_have_codes_and_end_the_request(error: Exception, code: int) -> None:
    log: list[tuple[str, Any, int]] = []
    responses = Responses(PbUtils)
    responses.start()
    exchange = Exchange(Sender(log, "one"), lambda _: None)
    responses.fail(exchange, error)
    responses.stop()
    ((_, shown, flags),) = log
    assert (shown.message, shown.code, flags) == (str(error), code, 1)


def test_a_cancelled_client_is_told_of_once_and_only_while_it_is_open() -> None:
    told: list[Exchange] = []
    came = threading.Event()

    def on_cancelled(exchange: Exchange) -> None:
        told.append(exchange)
        came.set()

    responses = Responses(PbUtils)
    responses.start()
    running, ended = (Exchange(Sender([], name), on_cancelled) for name in ("running", "ended"))
    for exchange in (running, ended):
        responses.open(exchange)
    responses.put(ended, {}, final=True)
    for exchange in (running, ended):
        exchange.sender.cancelled.set()
    assert came.wait(10)
    responses.stop()
    assert told == [running]
