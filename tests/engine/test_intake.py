"""What the intake refuses, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.engine.intake import Intake
from octavo.errors import RequestError
from octavo.sampling_params import SamplingParams

NO_TEXT = SamplingParams(detokenize=False)


def intake(**knobs: Any) -> Intake:
    config = EngineConfig(model="m", max_num_seqs=4, max_num_batched_tokens=64, **knobs)
    return Intake(config, None, vocab_size=100, max_model_len=32)


@pytest.mark.parametrize(
    ("prompt", "params", "param", "words"),
    [
        ([], NO_TEXT, "prompt", ["empty"]),
        ([5, 100], NO_TEXT, "prompt", ["100", "0 to 99"]),
        ([-1, 5], NO_TEXT, "prompt", ["-1", "0 to 99"]),
        ([1] * 32, NO_TEXT, "prompt", ["32 tokens", "context is 32"]),
        ("text", NO_TEXT, "prompt", ["no tokenizer", "prompt_token_ids"]),
        ([1, "a"], NO_TEXT, "prompt", ["list with str"]),
        ([1, True], NO_TEXT, "prompt", ["list with bool"]),
        (7, NO_TEXT, "prompt", ["int"]),
        ({"prompts": "x"}, NO_TEXT, "prompt", ["unknown prompt key 'prompts'"]),
        ({}, NO_TEXT, "prompt", ["needs 'prompt'"]),
        ({"prompt": 3}, NO_TEXT, "prompt", ["must be text"]),
        ([1], SamplingParams(), "detokenize", ["detokenize=False"]),
        ([1], SamplingParams(stop="x"), "stop", ["needs a tokenizer"]),
        ([1], SamplingParams(n=5, detokenize=False), "n", ["n (5)", "max_num_seqs (4)"]),
        ([1], SamplingParams(logit_bias={100: 1}, detokenize=False), "logit_bias", ["100", "0 to 99"]),
        ([1], SamplingParams(stop_token_ids=[100], detokenize=False), "stop_token_ids", ["100"]),
        ([1], {"temperature": 1}, "sampling_params", ["SamplingParams", "dict"]),
    ],
)
def test_refusals(prompt: Any, params: Any, param: str, words: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        intake().admit(prompt, params, "r", arrival_time=0.0)
    assert caught.value.param == param
    for word in words:
        assert word in str(caught.value)


def test_longest_prompt_that_leaves_room() -> None:
    admitted = intake().admit([1] * 31, NO_TEXT, "r", arrival_time=0.0)
    assert len(admitted.message.prompt_token_ids) == 31


def test_seeds_are_given_at_intake() -> None:
    def seeds(**knobs: Any) -> list[int]:
        one = intake(**knobs)
        return [one.admit([1], NO_TEXT, str(i), arrival_time=0.0).message.seed for i in range(4)]

    assert seeds(seed=5) == seeds(seed=5)
    assert seeds(seed=5) != seeds(seed=6)
    assert seeds() != seeds()
    assert len(set(seeds())) == 4


def test_negative_seeds_are_seeds_of_their_own() -> None:
    def seed(value: int) -> int:
        params = SamplingParams(seed=value, detokenize=False)
        return intake().admit([1], params, "r", arrival_time=0.0).message.seed

    assert seed(-1) == 2**64 - 1
    assert seed(3) == 3
