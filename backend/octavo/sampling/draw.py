"""Random draws from filtered softmax distributions, all rows at once.

Everything works on weights, exp((logit - largest) / temperature): proportional to the probabilities, the likeliest
token's weight being 1. Filters zero weights; what is left is drawn from by inverse CDF in vocabulary order. No row's
arithmetic depends on another row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.sampling import rows

_CHUNK = 256
"""Weights summed together in the first level of the inverse CDF."""

_CANDIDATES = (256, 4096)
"""How many of the largest weights are looked at; rows whose cut lies beyond them all are sorted whole."""

_FLOAT32 = torch.finfo(torch.float32)


@dataclass(frozen=True, slots=True)
class Filters:
    """What each of R rows is filtered by; float64 / int64 [R].

    Attributes:
        temperature: above 0.
        top_k: vocab_size where nothing is cut.
        top_p: 1 where nothing is cut.
        min_p: 0 where nothing is cut.
    """

    temperature: NDArray[np.float64]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]


class Drawer:
    """Draws tokens; owns two buffers of weights, which grow to the most rows seen.

    Args:
        vocab_size: V.
        device: of the logits.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._padded = -(-vocab_size // _CHUNK) * _CHUNK
        # One more than may be kept: the next weight tells whether equal ones are cut off.
        self._widths = [*(count + 1 for count in _CANDIDATES if count + 1 < vocab_size), vocab_size]
        self._device = device
        self._buffer = torch.zeros((0, self._padded), dtype=torch.float32, device=device)
        self._scratch = self._buffer

    def draw(
        self, logits: Tensor, filters: Filters, owners: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> tuple[Tensor, Tensor]:
        """Draws D tokens.

        Args:
            logits: float32 [R, V]; not changed.
            filters: of the R rows; min_p, then top_k, then top_p are applied after the temperature.
            owners: int64 [D], the row each draw is made from.
            uniforms: float64 [D], in [0, 1).

        Returns:
            Tokens, int64 [D], and each row's largest logit, float32 [R]. Where that is not finite the row's tokens
            mean nothing.
        """
        weights, peaks = self._weights(logits, filters)
        if filters.min_p.any():
            rows.zero_below(weights, self._tensor(filters.min_p.astype(np.float32)))
        cut = np.flatnonzero((filters.top_k < self._vocab_size) | (filters.top_p < 1))
        if len(cut):
            self._cut(weights, filters, cut)
        tokens = _inverse_cdf(weights, self._tensor(owners), self._tensor(uniforms))
        return tokens, peaks

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def _weights(self, logits: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
        """float32 [R, padded V], padding 0, and the rows' largest logits; NaN in the row where that is not finite."""
        count = len(logits)
        if count > len(self._buffer):
            self._buffer = torch.zeros((count, self._padded), dtype=torch.float32, device=self._device)
        weights = self._buffer[:count]
        inside = weights[:, : self._vocab_size]
        peaks = logits.amax(dim=-1)
        temperature = np.clip(filters.temperature, _FLOAT32.tiny, _FLOAT32.max).astype(np.float32)
        torch.sub(logits, peaks[:, None], out=inside)
        inside.div_(self._tensor(temperature)[:, None]).exp_()
        return weights, peaks

    def _cut(self, weights: Tensor, filters: Filters, cut: NDArray[np.int64]) -> None:
        """Applies top_k and top_p to the rows `cut`, in place."""
        top_k, top_p = self._tensor(filters.top_k[cut]), self._tensor(filters.top_p[cut])
        if len(self._scratch) < len(cut):
            self._scratch = torch.zeros_like(weights)
        subset = torch.index_select(weights, 0, self._tensor(cut), out=self._scratch[: len(cut)])
        mass = _chunk_sums(subset).cumsum(dim=-1)[:, -1]
        threshold = torch.zeros_like(mass, dtype=torch.float32)
        ties = torch.zeros_like(top_k)
        rest = torch.arange(len(cut), device=self._device)
        for width in self._widths:
            # The padding is 0, hence last: it changes no prefix.
            values = rows.largest(subset if len(rest) == len(cut) else subset[rest], width)
            found, equal, complete = _prefix(values, top_k[rest], top_p[rest], mass[rest], self._vocab_size)
            threshold[rest], ties[rest] = found, equal
            rest = rest[~complete]
            if not len(rest):
                break
        floor = torch.zeros(len(weights), dtype=torch.float32, device=self._device)
        floor[self._tensor(cut)] = threshold
        rows.zero_below(weights, floor)
        for place in ties.nonzero()[:, 0].tolist():
            row = weights[int(cut[place])]
            tied = (row == threshold[place]).nonzero()[:, 0]
            row[tied[int(ties[place]) :]] = 0.0


def _prefix(
    values: Tensor, top_k: Tensor, top_p: Tensor, mass: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Where rows, sorted by falling weight and among equals by token id, are to be cut.

    Args:
        values: float32 [S, W], the W largest weights in descending order.
        mass: float64 [S], sum of the whole row.

    Returns:
        threshold: float32 [S], the smallest weight kept.
        ties: int64 [S], how many tokens of just that weight are kept if some of them are not; else 0.
        complete: bool [S], False where W values were too few to tell; the others then mean nothing.
    """
    width = values.shape[1]
    sums = values.cumsum(dim=-1, dtype=torch.float64)
    limited = top_k < vocab_size
    total = torch.where(limited, _column(sums, top_k - 1), mass)
    reached = torch.searchsorted(sums, (top_p * total)[:, None])[:, 0] + 1
    kept = torch.where(top_p < 1, torch.minimum(reached, top_k), top_k)
    complete = (kept < width) & (~limited | (top_k < width)) if width < vocab_size else torch.ones_like(limited)
    threshold = _column(values, kept - 1)
    ties = torch.zeros_like(kept)
    tied = ((_column(values, kept) == threshold) & (threshold > 0) & (kept < width)).nonzero()[:, 0]
    if len(tied):
        above = (values[tied] > threshold[tied, None]).sum(dim=-1)
        ties[tied] = kept[tied] - above
    return threshold, ties, complete


def _column(matrix: Tensor, columns: Tensor) -> Tensor:
    """One value of each row; of the last column where `columns` points past it."""
    return matrix.gather(1, columns.clamp(max=matrix.shape[1] - 1)[:, None])[:, 0]


def _chunk_sums(weights: Tensor) -> Tensor:
    """float64 [R, C]: sums over chunks of the vocabulary."""
    return weights.view(len(weights), -1, _CHUNK).sum(dim=-1).double()


def _first_above(sums: Tensor, target: Tensor) -> Tensor:
    """For each row of running sums, the first column above target; the last that adds anything if rounding left none.

    A column that adds nothing is never returned. Sums that are NaN give some column within the row.
    """
    above = (sums <= target[:, None]).sum(dim=-1)
    adding = (sums < sums[:, -1:]).sum(dim=-1)
    return torch.minimum(above, adding)


def _inverse_cdf(weights: Tensor, owners: Tensor, uniforms: Tensor) -> Tensor:
    """For each draw the first token at which the running sum of its row exceeds uniform x total: int64 [D]."""
    sums = _chunk_sums(weights).cumsum(dim=-1)[owners]
    target = uniforms * sums[:, -1]
    chunk = _first_above(sums, target)
    before = sums.gather(1, (chunk - 1).clamp(min=0)[:, None])[:, 0]
    rest = target - torch.where(chunk > 0, before, 0.0)
    inside = weights.view(len(weights), -1, _CHUNK)[owners, chunk].cumsum(dim=-1, dtype=torch.float64)
    return chunk * _CHUNK + _first_above(inside, rest)
