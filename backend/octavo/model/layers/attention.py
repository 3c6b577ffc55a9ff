"""Self-attention over the paged cache."""

from __future__ import annotations

import torch

import octavo_kernels as kernels
from octavo.model.layers.linear import Linear
from octavo.model.spec import DecoderSpec
from octavo_kernels import AttentionBatch, KVCache


class Attention:
    """Fused query, key and value projection, rotary embedding, paged attention, output projection."""

    def __init__(self, spec: DecoderSpec, layer: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self._head_dim = spec.head_dim
        self._sizes = [
            spec.num_heads * spec.head_dim,
            spec.num_kv_heads * spec.head_dim,
            spec.num_kv_heads * spec.head_dim,
        ]
        self._scale = spec.head_dim**-0.5
        self._rope = spec.rope
        self._window = spec.sliding_windows[layer]
        self.qkv = Linear(spec.hidden_size, tuple(self._sizes), bias=spec.qkv_bias, dtype=dtype, device=device)
        self.output = Linear(
            self._sizes[0], (spec.hidden_size,), bias=spec.attention_output_bias, dtype=dtype, device=device
        )

    def __call__(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        batch: AttentionBatch,
        cache: KVCache,
    ) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; writes the tokens' keys and values into the cache on the way."""
        query, key, value = (
            part.view(part.shape[0], -1, self._head_dim) for part in torch.split(self.qkv(x), self._sizes, dim=-1)
        )
        kernels.rotary_and_write_kv(
            query,
            key,
            value,
            positions,
            cos_sin,
            cache,
            batch.slot_mapping,
            rotary_dim=self._rope.rotary_dim,
            interleaved=self._rope.interleaved,
        )
        mixed = kernels.paged_attention(query, cache, batch, scale=self._scale, sliding_window=self._window)
        return self.output(mixed.flatten(1))

    def pack(self) -> None:
        self.qkv.pack()
        self.output.pack()

    def slots(self) -> dict[str, torch.Tensor]:
        return self.qkv.slots(("q", "k", "v")) | self.output.slots(("o",))
