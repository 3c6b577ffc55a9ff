"""Workspace: what the layers of one step write into, made once a step and used by every layer in turn."""

from __future__ import annotations

import torch

from octavo.model.spec import DecoderSpec


class Workspace:
    """Buffers for T tokens, [T, ...] each.

    A layer's calls then make no tensors: at a few microseconds each, those would cost as much as the kernels' own work
    on a small model.

    Attributes:
        normed: [T, hidden], what a block reads.
        qkv: [T, query + key + value], and its three parts by heads, [T, heads, head_dim], over the same memory.
        mixed: [T, query], attention's result, and the same by heads.
        gated: [T, intermediate].
        update: [T, hidden], what a block adds to the residual.
    """

    def __init__(self, spec: DecoderSpec, num_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        def make(width: int) -> torch.Tensor:
            return torch.empty((num_tokens, width), dtype=dtype, device=device)

        query_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.normed = make(spec.hidden_size)
        self.qkv = make(query_size + 2 * kv_size)
        parts = torch.split(self.qkv, [query_size, kv_size, kv_size], dim=-1)
        self.query, self.key, self.value = (part.view(num_tokens, -1, spec.head_dim) for part in parts)
        self.mixed = make(query_size)
        self.mixed_heads = self.mixed.view(num_tokens, spec.num_heads, spec.head_dim)
        self.gated = make(spec.intermediate_size)
        self.update = make(spec.hidden_size)
