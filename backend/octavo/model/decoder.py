"""Decoder: the one network, whatever the family; a DecoderSpec says how it is built."""

from __future__ import annotations

import torch

from octavo.model.layers.attention import Attention
from octavo.model.layers.embedding import Embedding, TiedEmbedding
from octavo.model.layers.linear import Linear
from octavo.model.layers.mlp import GatedMLP
from octavo.model.layers.norm import RMSNorm
from octavo.model.layers.rotary import cos_sin_cache
from octavo.model.layers.workspace import Workspace
from octavo.model.spec import DecoderSpec
from octavo_kernels import AttentionBatch, KVCache


class DecoderLayer:
    """Norm, attention, norm, MLP, each pair around the residual."""

    def __init__(self, spec: DecoderSpec, layer: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.attention_norm = RMSNorm(spec.hidden_size, spec.norm_eps, dtype=dtype, device=device)
        self.attention = Attention(spec, layer, dtype=dtype, device=device)
        self.mlp_norm = RMSNorm(spec.hidden_size, spec.norm_eps, dtype=dtype, device=device)
        self.mlp = GatedMLP(spec, dtype=dtype, device=device)

    def pack(self) -> None:
        self.attention.pack()
        self.mlp.pack()

    def slots(self) -> dict[str, torch.Tensor]:
        return {
            "attention_norm.weight": self.attention_norm.weight,
            "mlp_norm.weight": self.mlp_norm.weight,
            **self.attention.slots(),
            **self.mlp.slots(),
        }


class Decoder:
    """A causal language model over a paged cache. Its weights are empty until something fills `slots()`.

    Args:
        num_positions: positions that will be asked for; bounds the rotary table.
    """

    def __init__(self, spec: DecoderSpec, *, dtype: torch.dtype, device: torch.device, num_positions: int) -> None:
        self.spec = spec
        self.layers = [DecoderLayer(spec, layer, dtype=dtype, device=device) for layer in range(spec.num_layers)]
        self.final_norm = RMSNorm(spec.hidden_size, spec.norm_eps, dtype=dtype, device=device)
        self.embedding: Embedding | TiedEmbedding
        self.head: Linear
        if spec.tie_word_embeddings:
            tied = TiedEmbedding(spec.vocab_size, spec.hidden_size, dtype=dtype, device=device)
            self.embedding, self.head = tied, tied
        else:
            self.embedding = Embedding(spec.vocab_size, spec.hidden_size, dtype=dtype, device=device)
            self.head = Linear(spec.hidden_size, (spec.vocab_size,), bias=False, dtype=dtype, device=device)
        self.cos_sin = cos_sin_cache(spec.rope, num_positions, device)
        self.weight_bytes = sum(slot.numel() * slot.element_size() for slot in self.slots().values())
        """Bytes of all weights, a tied one counted once: what a decode step reads."""

    def pack(self) -> None:
        """Lets every layer bring its weights into the order its products read, one at a time. Call once they are
        loaded; `slots` is of no use afterwards."""
        self.head.pack()
        for layer in self.layers:
            layer.pack()

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch, kv_caches: list[KVCache]
    ) -> torch.Tensor:
        """Computes T tokens of a ragged batch and writes their keys and values.

        Args:
            token_ids, positions: int64 [T].
            kv_caches: one a layer.

        Returns:
            [T, hidden], after the final norm.
        """
        residual = self.embedding.lookup(token_ids)
        space = Workspace(self.spec, residual.shape[0], residual.dtype, residual.device)
        space.update.zero_()
        for layer, cache in zip(self.layers, kv_caches, strict=True):
            layer.attention_norm.add_and_norm(space.update, residual, space.normed)
            layer.attention(space, positions, self.cos_sin, batch, cache)
            layer.mlp_norm.add_and_norm(space.update, residual, space.normed)
            layer.mlp(space)
        self.final_norm.add_and_norm(space.update, residual, space.normed)
        return space.normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> float32 [R, vocab]."""
        return self.head.float32(hidden)

    def slots(self) -> dict[str, torch.Tensor]:
        """Every weight's place, by our names; a projection's is a part of the fused weight it belongs to."""
        found = {**self.embedding.slots(("embedding",)), "final_norm.weight": self.final_norm.weight}
        if self.head is not self.embedding:
            found |= self.head.slots(("head",))
        for index, layer in enumerate(self.layers):
            found |= {f"layers.{index}.{name}": tensor for name, tensor in layer.slots().items()}
        return found
