"""Logprobs of chosen and likeliest tokens: log-softmax of the model's own logits, before any processing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.core.step import TokenLogprobs
from octavo.sampling import rows


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of D chosen tokens, and of the K likeliest ones of the R rows they come from.

    Attributes:
        chosen: int64 [D].
        chosen_logprobs: float32 [D].
        ranks: int64 [D], from 1; equally likely tokens share a rank.
        owners: int64 [D], each chosen token's row.
        top, top_logprobs: int64 and float32 [R, K], likeliest first, among equals by token id.
    """

    chosen: NDArray[np.int64]
    chosen_logprobs: NDArray[np.float32]
    ranks: NDArray[np.int64]
    owners: NDArray[np.int64]
    top: NDArray[np.int64]
    top_logprobs: NDArray[np.float32]

    def tokens(self, counts: Sequence[int]) -> list[TokenLogprobs]:
        """One TokenLogprobs for each chosen token, with the first `counts[d]` of the top ones."""
        top, top_logprobs = self.top.tolist(), self.top_logprobs.tolist()
        return [
            TokenLogprobs([token, *top[owner][:count]], [logprob, *top_logprobs[owner][:count]], rank)
            for token, logprob, rank, owner, count in zip(
                self.chosen.tolist(),
                self.chosen_logprobs.tolist(),
                self.ranks.tolist(),
                self.owners.tolist(),
                counts,
                strict=True,
            )
        ]


def logprobs(logits: Tensor, owners: NDArray[np.int64], chosen: NDArray[np.int64], count: int) -> Logprobs:
    """Logprobs of `chosen` tokens, and the top `count` of each row.

    Args:
        logits: float32 [R, V], as the model gave them.
        owners: int64 [D], the row each chosen token belongs to.
        chosen: int64 [D].
        count: K; at most V are given.
    """
    norm = logits.logsumexp(dim=-1)
    of = torch.from_numpy(owners).to(logits.device)
    values = logits[of, torch.from_numpy(chosen).to(logits.device)]
    top, top_values = _top(logits, min(count, logits.shape[1]))
    return Logprobs(
        chosen=chosen,
        chosen_logprobs=(values - norm[of]).cpu().numpy(),
        ranks=(rows.count_above(logits, of, values) + 1).cpu().numpy(),
        owners=owners,
        top=top,
        top_logprobs=(torch.from_numpy(top_values) - norm.cpu()[:, None]).numpy(),
    )


def _top(logits: Tensor, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The `count` likeliest tokens of each row and their logits, among equals by token id."""
    if count == 0:
        return np.zeros((len(logits), 0), np.int64), np.zeros((len(logits), 0), np.float32)
    found = logits.topk(min(count + 1, logits.shape[1]), dim=-1)
    values, ids = found.values.cpu().numpy(), found.indices.cpu().numpy()
    if values.shape[1] > count:
        # topk picks any of several equal ones at its end: pick again where that matters.
        for row in np.flatnonzero(values[:, count] == values[:, count - 1]).tolist():
            last = values[row, count - 1]
            tied = np.flatnonzero(values[row, :count] == last)
            equal = (logits[row] == float(last)).nonzero()[: len(tied), 0]
            ids[row, tied] = equal.cpu().numpy()
    values, ids = values[:, :count], ids[:, :count]
    order = np.lexsort((ids, -values), axis=-1)
    return np.take_along_axis(ids, order, axis=-1), np.take_along_axis(values, order, axis=-1)
