"""OutputStream: a slow caller finds deltas joined, none lost, none doubled."""

from __future__ import annotations

import pytest

from octavo.engine.stream import OutputStream
from octavo.outputs import CompletionOutput, FinishReason, RequestOutput


def delta(text: str, index: int = 0, finish: FinishReason | None = None, count: int = 0) -> RequestOutput:
    sequence = CompletionOutput(index=index, text=text, token_ids=[ord(c) for c in text], finish_reason=finish)
    return RequestOutput("r", "p", [1], [sequence], finished=finish is not None, num_output_tokens=count)


async def test_one_at_a_time() -> None:
    stream = OutputStream()
    for text in ("a", "b"):
        stream.put(delta(text))
        assert (await stream.get()).outputs[0].text == text


async def test_a_slow_reader_gets_joined_deltas() -> None:
    stream = OutputStream()
    stream.put(delta("a", 0, count=1))
    stream.put(delta("x", 1, count=2))
    stream.put(delta("b", 0, count=3))
    stream.put(delta("y", 1, "stop", count=4))
    output = await stream.get()
    assert [(one.index, one.text, one.token_ids) for one in output.outputs] == [
        (0, "ab", [97, 98]),
        (1, "xy", [120, 121]),
    ]
    assert output.outputs[1].finish_reason == "stop"
    assert output.finished
    assert output.num_output_tokens == 4


async def test_what_is_pending_comes_before_the_error() -> None:
    stream = OutputStream()
    stream.put(delta("a"))
    stream.fail(ValueError("first"))
    stream.fail(ValueError("second"))
    assert (await stream.get()).outputs[0].text == "a"
    with pytest.raises(ValueError, match="first"):
        await stream.get()
