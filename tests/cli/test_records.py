"""Lines of JSONL: what is read, what is refused, what is written."""

from __future__ import annotations

import json

import pytest

from octavo.cli.records import format_error, format_result, parse
from octavo.errors import RequestError
from octavo.outputs import CompletionOutput, Logprob, RequestOutput
from octavo.sampling_params import SamplingParams

DEFAULTS = SamplingParams(temperature=0.5, max_tokens=7)


def test_a_line_wins_over_the_flags() -> None:
    job = parse(3, b'{"prompt": "\xc3\xa9", "max_tokens": 2, "stop": "x", "id": {"a": 1}}', DEFAULTS)
    assert job.prompt == {"prompt": "é"}
    assert (job.params.max_tokens, job.params.temperature, job.params.stop) == (2, 0.5, ["x"])
    assert (job.line, job.id) == (3, {"a": 1})


def test_the_three_kinds_of_prompt() -> None:
    assert parse(1, b'{"prompt_token_ids": [1, 2]}', DEFAULTS).prompt == {"prompt_token_ids": [1, 2]}
    assert parse(1, b'{"messages": [{"role": "user"}]}', DEFAULTS).messages == [{"role": "user"}]
    assert parse(1, b'{"prompt": ""}', DEFAULTS).params is DEFAULTS


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"prompt": "a"', ["not JSON"]),
        (b"\xff\xfe", ["not UTF-8", "0xff", "position 0"]),
        (b"[1]", ["object"]),
        (b"[" * 100_000, ["not JSON"]),
        (b"{}", ["exactly one", "none"]),
        (b'{"prompt": "a", "messages": []}', ["exactly one", "prompt and messages"]),
        (b'{"promt": "a"}', ["unknown key 'promt'", "did you mean 'prompt'"]),
        (b'{"prompt": "a", "temprature": 1}', ["did you mean 'temperature'"]),
        (b'{"prompt": "a", "temperature": -1}', ["temperature", "-1"]),
        (b'{"prompt": "a", "max_tokens": NaN}', ["max_tokens"]),
        (b'{"prompt": 5}', ["prompt must be text", "int"]),
        (b'{"prompt": ["a"]}', ["prompt must be text", "list"]),
        (b'{"messages": "hi"}', ["messages must be a list"]),
        (b'{"messages": []}', ["messages must be a list"]),
    ],
)
def test_a_bad_line_is_refused_with_the_reason(raw: bytes, words: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        parse(1, raw, DEFAULTS)
    for word in words:
        assert word in str(caught.value)


def test_results_are_json() -> None:
    output = RequestOutput(
        request_id="r",
        prompt="p",
        prompt_token_ids=[1, 2],
        outputs=[
            CompletionOutput(1, "b", [4], finish_reason="length"),
            CompletionOutput(
                0,
                "a",
                [3],
                cumulative_logprob=-0.5,
                logprobs=[{3: Logprob(-0.5, 1, "a", b"\xff"), 9: Logprob(-2.0, 2)}],
                finish_reason="stop",
                stop_reason="x",
            ),
        ],
        finished=True,
        prompt_logprobs=[None, {2: Logprob(-1.0, 1)}],
        num_cached_tokens=1,
        num_output_tokens=2,
    )
    record = json.loads(json.dumps(format_result(4, "mine", output)))
    assert (record["line"], record["id"], record["prompt"]) == (4, "mine", "p")
    assert [one["text"] for one in record["outputs"]] == ["a", "b"]
    assert record["outputs"][0]["stop_reason"] == "x"
    assert record["outputs"][0]["logprobs"][0][0] == {
        "token_id": 3,
        "logprob": -0.5,
        "rank": 1,
        "decoded_token": "a",
        "token_bytes": [255],
    }
    assert "logprobs" not in record["outputs"][1]
    assert record["prompt_logprobs"][0] is None
    assert record["usage"] == {"prompt_tokens": 2, "cached_tokens": 1, "completion_tokens": 2}


def test_errors_are_json() -> None:
    assert format_error(2, None, RequestError("bad", "n")) == {"line": 2, "error": "bad", "param": "n"}
    assert format_error(2, 0, RequestError("bad"))["id"] == 0
