"""Self-attention over the paged cache."""

from __future__ import annotations

import torch

import octavo_kernels as kernels
from octavo.model.layers.linear import Linear
from octavo.model.layers.workspace import Workspace
from octavo.model.spec import DecoderSpec
from octavo_kernels import AttentionBatch, KVCache


class Attention:
    """Fused query, key and value projection, rotary embedding, paged attention, output projection."""

    def __init__(self, spec: DecoderSpec, layer: int, *, dtype: torch.dtype, device: torch.device) -> None:
        query_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self._scale = spec.head_dim**-0.5
        self._rope = spec.rope
        self._window = spec.sliding_windows[layer]
        self.qkv = Linear(
            spec.hidden_size, (query_size, kv_size, kv_size), bias=spec.qkv_bias, dtype=dtype, device=device
        )
        self.output = Linear(
            query_size, (spec.hidden_size,), bias=spec.attention_output_bias, dtype=dtype, device=device
        )

    def __call__(
        self,
        space: Workspace,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        batch: AttentionBatch,
        cache: KVCache,
    ) -> None:
        """From `space.normed` to `space.update`; writes the tokens' keys and values into the cache on the way."""
        self.qkv(space.normed, space.qkv)
        kernels.rotary_and_write_kv(
            space.query,
            space.key,
            space.value,
            positions,
            cos_sin,
            cache,
            batch.slot_mapping,
            rotary_dim=self._rope.rotary_dim,
            interleaved=self._rope.interleaved,
        )
        kernels.paged_attention(
            space.query, cache, batch, scale=self._scale, sliding_window=self._window, out=space.mixed_heads
        )
        self.output(space.mixed, space.update)

    def pack(self) -> None:
        self.qkv.pack()
        self.output.pack()

    def slots(self) -> dict[str, torch.Tensor]:
        return self.qkv.slots(("q", "k", "v")) | self.output.slots(("o",))
