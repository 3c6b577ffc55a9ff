"""Embedding: token ids to vectors, and back to logits where the head is tied to it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from octavo.model.layers.linear import Linear


class TiedEmbedding(Linear):
    """A head that is also looked up in: one weight [vocabulary, hidden] for both, packed or not."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(hidden_size, (vocab_size,), bias=False, dtype=dtype, device=device)

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, hidden]."""
        if self._packed is not None:
            return self._packed.rows(token_ids)
        return F.embedding(token_ids, self._plain())


class Embedding:
    """A table [vocabulary, hidden] that is only looked up in."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(vocab_size, hidden_size, dtype=dtype, device=device)

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, hidden]."""
        return F.embedding(token_ids, self.weight)

    def slots(self, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        return {f"{name}.weight": self.weight for name in names}
