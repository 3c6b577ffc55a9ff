"""From tensors and parameters to a request, and from outputs to tensors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo import RequestError
from octavo.outputs import CompletionOutput, Logprob, RequestOutput
from octavo.tensors import INPUTS, TensorAnswer, TensorRequest


def parse(parameters: dict[str, Any] | None = None, **inputs: Any) -> TensorRequest:
    values = {name: value if isinstance(value, list) else [value] for name, value in inputs.items()}
    return TensorRequest.parse(values, parameters or {})


def test_the_least_there_can_be() -> None:
    request = parse(text_input=b"hi")
    assert request == parse(text_input="hi")
    assert (request.prompt, request.messages, request.stream, request.echo) == ("hi", None, False, True)
    assert request.outputs == {"text_output"}
    assert (request.params.max_tokens, request.params.temperature) == (16, 1.0)


@pytest.mark.parametrize(
    ("parameters", "sampling", "want"),
    [
        ({"temperature": "0", "top_p": "0.5"}, None, {"temperature": 0.0, "top_p": 0.5}),
        ({"max_tokens": 5}, '{"max_tokens": "7"}', {"max_tokens": 7}),
        ({"ignore_eos": "true", "n": "2"}, "{}", {"ignore_eos": True, "n": 2}),
        ({"stop": '["a", "b"]'}, None, {"stop": ["a", "b"]}),
        ({"stop": "[a"}, None, {"stop": ["[a"]}),
        ({"stop_token_ids": "[1, 2]"}, None, {"stop_token_ids": [1, 2]}),
        ({"logit_bias": '{"5": -1}'}, None, {"logit_bias": {5: -1.0}}),
        ({}, '{"stop": ["x"], "logit_bias": {"7": 2}}', {"stop": ["x"], "logit_bias": {7: 2.0}}),
        ({"triton_enable_empty_final_response": True}, None, {}),
    ],
)
def test_parameters(parameters: dict[str, Any], sampling: str | None, want: dict[str, Any]) -> None:
    inputs = {"text_input": "hi"} | ({} if sampling is None else {"sampling_parameters": sampling})
    params = parse(parameters, **inputs).params
    assert {name: getattr(params, name) for name in want} == want


def test_what_is_no_sampling_parameter() -> None:
    request = parse({"priority": "3", "request_id": "a", "cache_salt": "s", "timeout": "2.5"}, text_input="hi")
    assert (request.priority, request.request_id, request.cache_salt, request.timeout) == (3, "a", "s", 2.5)
    request = parse({"priority": 3, "request_id": "a"}, text_input="hi", priority=7, request_id=b"b")
    assert (request.priority, request.request_id) == (7, "b")
    assert parse({"request_id": ""}, text_input="hi").request_id is None


@pytest.mark.parametrize(
    ("inputs", "echo"),
    [
        ({"text_input": "hi"}, True),
        ({"text_input": "hi", "stream": True}, False),
        ({"text_input": "hi", "exclude_input_in_output": True}, False),
        ({"text_input": "hi", "exclude_input_in_output": False}, True),
        ({"input_ids": [1, 2]}, False),
        ({"messages": '[{"role": "user", "content": "x"}]'}, False),
    ],
)
def test_the_prompt_in_the_output(inputs: dict[str, Any], echo: bool) -> None:
    assert parse(**inputs).echo is echo


@pytest.mark.parametrize(
    ("parameters", "inputs", "param", "words"),
    [
        ({}, {}, "text_input", "required"),
        ({}, {"text_inputs": "x"}, "text_inputs", "did you mean 'text_input'"),
        ({}, {"text_input": ["a", "b"]}, "text_input", "2 values; it takes one"),
        ({}, {"text_input": []}, "text_input", "0 values"),
        ({}, {"text_input": b"\xff"}, "text_input", "not UTF-8"),
        ({}, {"text_input": 5}, "text_input", "must be text"),
        ({}, {"text_input": "x", "image": ["aGk="]}, "image", "text alone"),
        ({}, {"text_input": "x", "input_ids": [1]}, "input_ids", "one of them"),
        ({}, {"messages": "[]", "input_ids": [1]}, "input_ids", "one of them"),
        ({}, {"messages": "{"}, "messages", "not JSON"),
        ({}, {"messages": "[]"}, "messages", "at least one"),
        ({}, {"messages": '[{"role": "robot", "content": "x"}]'}, "messages", "messages[0]"),
        ({}, {"text_input": "x", "sampling_parameters": "[1]"}, "sampling_parameters", "JSON object"),
        ({}, {"text_input": "x", "sampling_parameters": "{" * 5}, "sampling_parameters", "not JSON"),
        ({"max_tokenz": 1}, {"text_input": "x"}, "max_tokenz", "did you mean 'max_tokens'"),
        ({"temperature": "hot"}, {"text_input": "x"}, "temperature", "number"),
        ({"lora_name": "a"}, {"text_input": "x"}, "lora_name", "unknown"),
        ({"priority": "high"}, {"text_input": "x"}, "priority", "integer"),
        ({"timeout": "soon"}, {"text_input": "x"}, "timeout", "seconds"),
        ({"request_id": "x" * 2000}, {"text_input": "x"}, "request_id", "1024"),
        (
            {},
            {"text_input": "x", "stream": True, "exclude_input_in_output": False},
            "exclude_input_in_output",
            "stream",
        ),
        ({}, {"input_ids": [1], "exclude_input_in_output": False}, "exclude_input_in_output", "text_input"),
    ],
)
def test_what_is_wrong_is_named(parameters: dict[str, Any], inputs: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(parameters, **inputs)
    assert words in caught.value.message
    assert caught.value.param == param


def test_every_flag_asks_for_its_output() -> None:
    flags = [spec.name for spec in INPUTS if spec.name.startswith("return_")]
    for flag in flags:
        assert parse(text_input="x", **{flag: True}).outputs == {"text_output", flag.removeprefix("return_")}
        assert parse(text_input="x", **{flag: False}).outputs == {"text_output"}
    assert parse(input_ids=[1]).outputs == {"text_output", "output_ids", "num_output_tokens"}


def output(*parts: CompletionOutput, prompt: str | None = "hi") -> RequestOutput:
    return RequestOutput("r", prompt, [1, 2, 3], list(parts), finished=False)


def test_every_sequence_has_its_place_with_news_or_without() -> None:
    request = parse(
        {"n": 2, "logprobs": 1},
        text_input="hi",
        stream=True,
        return_finish_reason=True,
        return_cumulative_logprob=True,
        return_logprobs=True,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
    )
    answer = TensorAnswer(request)
    entry = {7: Logprob(-0.5, 1, "b")}
    first = answer.build(output(CompletionOutput(1, "b", [7], -0.5, [entry], finish_reason="stop")))
    assert first == {
        "text_output": ["", "b"],
        "finish_reason": ["None", "stop"],
        "cumulative_logprob": [0.0, -0.5],
        "logprobs": ["[]", json.dumps([{"7": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}])],
        "num_input_tokens": [3],
        "num_output_tokens": [0, 1],
    }
    second = answer.build(output(CompletionOutput(0, "aa", [5, 5], -2.0, [], finish_reason="length")))
    assert (second["text_output"], second["num_output_tokens"]) == (["aa", ""], [2, 0])
    assert (second["finish_reason"], second["cumulative_logprob"]) == (["length", "stop"], [-2.0, -0.5])


def test_logprobs_that_were_not_asked_for_are_null() -> None:
    request = parse(text_input="hi", return_logprobs=True, return_cumulative_logprob=True)
    assert request.params.logprobs == 0
    built = TensorAnswer(request).build(output(CompletionOutput(0, "a", [5], -1.0, [{5: Logprob(-1.0, 1, "a")}])))
    assert built == {"text_output": ["hia"], "logprobs": ["null"], "cumulative_logprob": [-1.0]}
