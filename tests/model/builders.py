"""Tiny models and the paged forward that tests of the decoder share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel

import octavo_kernels as kernels
from octavo.model.decoder import Decoder
from octavo.model.loading import load_decoder, load_spec, resolve_model
from octavo_kernels import AttentionBatch

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "eos_token_id": 2,
}


def save_llama(path: Path, *, shard_size: str = "5GB", **changes: Any) -> PreTrainedModel:
    """A random Llama, saved to `path`."""
    return _save(LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes})), path, shard_size)


def save_mistral(path: Path, **changes: Any) -> PreTrainedModel:
    return _save(MistralForCausalLM(MistralConfig(**{**SIZES, **changes})), path, "5GB")


def _save(model: PreTrainedModel, path: Path, shard_size: str) -> PreTrainedModel:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.float().save_pretrained(path, max_shard_size=shard_size)
    return model.eval()


def load(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    source = resolve_model(str(path))
    return load_decoder(source, load_spec(source), dtype=dtype, device=CPU, progress=False)


@torch.inference_mode()
def paged_logits(decoder: Decoder, sequences: list[list[int]], chunk: int, block_size: int = 4) -> list[torch.Tensor]:
    """Logits [S, V] of each sequence, computed `chunk` tokens a step, all sequences in one batch, blocks shuffled."""
    spec = decoder.spec
    counts = [math.ceil(len(tokens) / block_size) for tokens in sequences]
    order = torch.randperm(sum(counts))
    tables = torch.zeros(len(sequences), max(counts), dtype=torch.int32)
    for row, (start, count) in enumerate(zip([sum(counts[:i]) for i in range(len(counts))], counts, strict=True)):
        tables[row, :count] = order[start : start + count].int()
    caches = [
        kernels.allocate_kv_cache(
            sum(counts), block_size, spec.num_kv_heads, spec.head_dim, decoder.final_norm.weight.dtype, CPU
        )
        for _ in range(spec.num_layers)
    ]
    found: list[list[torch.Tensor]] = [[] for _ in sequences]
    for begin in range(0, max(map(len, sequences)), chunk):
        rows = [(row, tokens[begin : begin + chunk]) for row, tokens in enumerate(sequences) if begin < len(tokens)]
        sizes = [len(tokens) for _, tokens in rows]
        positions = torch.cat([torch.arange(begin, begin + size) for size in sizes])
        owners = torch.repeat_interleave(torch.tensor([row for row, _ in rows]), torch.tensor(sizes))
        blocks = tables[owners, positions // block_size].long()
        batch = AttentionBatch(
            query_start=torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32),
            seq_lens=torch.tensor([begin + size for size in sizes], dtype=torch.int32),
            block_table=tables[[row for row, _ in rows]],
            slot_mapping=blocks * block_size + positions % block_size,
            max_query_len=max(sizes),
            max_seq_len=begin + max(sizes),
        )
        ids = torch.tensor([token for _, tokens in rows for token in tokens])
        logits = decoder.logits(decoder.forward(ids, positions, batch, caches))
        for (row, _), part in zip(rows, logits.split(sizes), strict=True):
            found[row].append(part)
    return [torch.cat(parts) for parts in found]
