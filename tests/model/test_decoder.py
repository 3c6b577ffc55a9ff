"""The decoder against transformers in float32, whole and in chunks, over a paged cache with shuffled blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.model.builders import load, paged_logits, save_llama, save_mistral

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

LLAMAS: dict[str, dict[str, Any]] = {
    "llama2": {"num_key_value_heads": 6},
    "grouped": {},
    "one-kv-head": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head-size": {"head_dim": 20},
    "gelu": {"hidden_act": "gelu"},
    "gelu-tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
}


def check(model: PreTrainedModel, path: Path) -> None:
    decoder = load(path)
    torch.manual_seed(5)
    sequences = [torch.randint(0, 97, (length,)).tolist() for length in (1, 4, 5, 33, 70)]
    with torch.inference_mode():
        want = [model(torch.tensor([tokens])).logits[0] for tokens in sequences]
    for chunk in (70, 7, 1):
        for got, expected in zip(paged_logits(decoder, sequences, chunk), want, strict=True):
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", LLAMAS)
def test_llama(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    check(save_llama(tmp_path, **LLAMAS[name]), tmp_path)


def test_llama_in_shards(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = save_llama(tmp_path, shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    check(model, tmp_path)


@pytest.mark.parametrize("window", [None, 8, 1])
def test_mistral_with_a_sliding_window(window: int | None, tmp_path: Path) -> None:
    torch.manual_seed(3)
    check(save_mistral(tmp_path, sliding_window=window), tmp_path)


def test_weight_bytes_count_a_tied_embedding_once(tmp_path: Path) -> None:
    model = save_llama(tmp_path, tie_word_embeddings=True)
    parameters = {id(parameter): parameter.numel() for parameter in model.parameters()}
    assert load(tmp_path).weight_bytes == 4 * sum(parameters.values())
    assert load(tmp_path, torch.bfloat16).weight_bytes == 2 * sum(parameters.values())


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}])
def test_packed_weights_change_no_more_than_rounding(changes: dict[str, Any], tmp_path: Path) -> None:
    """bfloat16, where a CPU with tiles uses packed weights, against the same weights in float32."""
    torch.manual_seed(4)
    model = save_llama(tmp_path, initializer_range=0.08, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    tokens = torch.randint(0, 97, (60,)).tolist()
    with torch.inference_mode():
        want = model(torch.tensor([tokens])).logits[0]
    for chunk in (60, 1):
        got = paged_logits(load(tmp_path, torch.bfloat16), [tokens], chunk)[0]
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, want, atol=0.05 * float(want.abs().max()), rtol=0)
