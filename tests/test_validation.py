"""Options and sampling parameters: every bad one is refused in one sentence that says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.errors import ConfigError, RequestError
from octavo.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("values", "param", "words"),
    [
        ({"temprature": 1}, "temprature", ["unknown", "'temprature'", "did you mean 'temperature'"]),
        ({"temperature": -0.5}, "temperature", ["greater than or equal to 0", "-0.5"]),
        ({"temperature": float("nan")}, "temperature", ["finite"]),
        ({"temperature": "warm"}, "temperature", ["number", "'warm'"]),
        ({"n": 0}, "n", ["greater than or equal to 1", "0"]),
        ({"n": 1.5}, "n", ["1.5"]),
        ({"top_p": 0}, "top_p", ["greater than 0"]),
        ({"top_k": -2}, "top_k", ["-2"]),
        ({"min_p": 1.1}, "min_p", ["1.1"]),
        ({"max_tokens": 0}, "max_tokens", ["0"]),
        ({"repetition_penalty": 0}, "repetition_penalty", ["greater than 0"]),
        ({"logit_bias": {"5": 101}}, "logit_bias", ["100", "101"]),
        ({"logit_bias": {-1: 1}}, "logit_bias", ["-1"]),
        ({"stop": [""]}, "stop", ["cannot be empty"]),
        ({"stop": 5}, "stop", ["5"]),
        ({"logprobs": 101}, "logprobs", ["100"]),
        ({"min_tokens": 5, "max_tokens": 2}, None, ["min_tokens (5)", "max_tokens (2)"]),
        ({"stop": "x", "detokenize": False}, None, ["detokenize"]),
        ({"seed": 2**63}, "seed", [str(2**63)]),
    ],
)
def test_bad_sampling_params(values: dict[str, Any], param: str | None, words: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**values)
    assert isinstance(caught.value, ValueError)
    assert caught.value.param == param
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_good_sampling_params_are_coerced_and_frozen() -> None:
    params = SamplingParams(stop="END", logit_bias={"7": 1}, stop_token_ids=None, seed=-1)
    assert params.stop == ["END"]
    assert params.logit_bias == {7: 1.0}
    assert params.stop_token_ids == []
    with pytest.raises(ValueError, match="frozen"):
        params.n = 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": "m", "max_num_seq": 4}, ["unknown engine option", "did you mean 'max_num_seqs'"]),
        ({}, ["'model' is required"]),
        ({"model": " "}, ["model reference is required"]),
        ({"model": "m", "block_size": "many"}, ["block_size", "'many'"]),
        ({"model": "m", "max_num_batched_tokens": 8, "max_num_seqs": 9}, ["max_num_batched_tokens (8)", "(9)"]),
        ({"model": "m", "dtype": "int4"}, ["dtype", "'int4'", "bfloat16"]),
        ({"model": "m", "gpu_memory_utilization": 1.5}, ["gpu_memory_utilization", "1.5"]),
    ],
)
def test_bad_engine_options(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**values)
    for word in words:
        assert word in str(caught.value)


def test_sources_merge_and_later_ones_win() -> None:
    environ = {"OCTAVO_MAX_NUM_SEQS": "3", "OCTAVO_BLOCK_SIZE": "32", "OCTAVO_UNRELATED": "x"}
    config = EngineConfig.from_sources({"model": "m", "block_size": "8"}, {"block_size": 4}, environ=environ)
    assert (config.max_num_seqs, config.block_size) == (3, 4)


def test_strings_are_coerced() -> None:
    config = EngineConfig(model="m", enable_prefix_caching="false", max_num_seqs="2", served_model_name="a")
    assert config.enable_prefix_caching is False
    assert config.max_num_seqs == 2
    assert config.model_name == "a"
    assert EngineConfig(model="m").model_names == ["m"]


def test_config_survives_json() -> None:
    config = EngineConfig(model="m", kv_cache_memory_bytes=1 << 40, seed=-3)
    assert EngineConfig.model_validate_json(config.model_dump_json()) == config
