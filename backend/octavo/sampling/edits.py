"""Per-request changes to the logits: logit_bias, bad words, min_tokens, penalties. All sparse, applied at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.sampling.penalties import PenaltyCounts
from octavo.sampling_params import SamplingParams


@dataclass(slots=True)
class RowEdits:
    """What one sequence's logits go through.

    Attributes:
        bias_ids, bias: added to these tokens' logits.
        early_ids: forbidden while fewer than `min_tokens` tokens are generated (end of sequence, stop tokens).
        bad_ids: bad words of one token.
        bad_sequences: longer ones; the last token is forbidden after the others, all of them generated.
    """

    num_prompt_tokens: int
    bias_ids: NDArray[np.int64]
    bias: NDArray[np.float32]
    early_ids: NDArray[np.int64]
    min_tokens: int
    bad_ids: NDArray[np.int64]
    bad_sequences: list[NDArray[np.int64]]
    penalties: PenaltyCounts | None

    def forbidden(self, token_ids: NDArray[np.int32]) -> list[NDArray[np.int64]]:
        """Tokens that may not follow `token_ids` (prompt and output)."""
        output = token_ids[self.num_prompt_tokens :]
        parts = [self.bad_ids]
        if len(output) < self.min_tokens:
            parts.append(self.early_ids)
        ended = (word for word in self.bad_sequences if np.array_equal(output[1 - len(word) :], word[:-1]))
        return [*parts, *(word[-1:] for word in ended)]


def edits_needed(params: SamplingParams, bad_word_ids: Sequence[Sequence[int]]) -> bool:
    return bool(params.logit_bias or bad_word_ids or params.min_tokens) or PenaltyCounts.needed(params)


def build_edits(
    params: SamplingParams,
    bad_word_ids: Sequence[Sequence[int]],
    end_token_ids: Sequence[int],
    token_ids: NDArray[np.int32],
    num_prompt_tokens: int,
) -> RowEdits:
    """Edits of a sequence that enters the batch with `token_ids` (prompt and output).

    `end_token_ids` are what min_tokens forbids. All ids must be inside the vocabulary.
    """
    bias = params.logit_bias or {}
    return RowEdits(
        num_prompt_tokens=num_prompt_tokens,
        bias_ids=np.fromiter(bias.keys(), np.int64, len(bias)),
        bias=np.fromiter(bias.values(), np.float32, len(bias)),
        early_ids=np.array(end_token_ids if params.min_tokens else [], np.int64),
        min_tokens=params.min_tokens,
        bad_ids=np.array([word[0] for word in bad_word_ids if len(word) == 1], np.int64),
        bad_sequences=[np.array(word, np.int64) for word in bad_word_ids if len(word) > 1],
        penalties=PenaltyCounts(params, token_ids, num_prompt_tokens) if PenaltyCounts.needed(params) else None,
    )


@dataclass(slots=True)
class EditBatch:
    """The edits of one step's rows, gathered into flat index arrays."""

    vocab_size: int
    _bias_at: list[NDArray[np.int64]] = field(default_factory=list)
    _bias: list[NDArray[np.float32]] = field(default_factory=list)
    _forbidden_at: list[NDArray[np.int64]] = field(default_factory=list)
    _penalised: list[tuple[NDArray[np.int64], PenaltyCounts]] = field(default_factory=list)

    def add(self, row: int, edits: RowEdits, token_ids: NDArray[np.int32]) -> None:
        """Takes up row `row`, whose sequence is `token_ids` (prompt and output) so far."""
        base = row * self.vocab_size
        if len(edits.bias):
            self._bias_at.append(edits.bias_ids + base)
            self._bias.append(edits.bias)
        self._forbidden_at.extend(ids + base for ids in edits.forbidden(token_ids) if len(ids))
        if edits.penalties is not None:
            self._penalised.append((edits.penalties.token_ids + base, edits.penalties))

    def apply(self, logits: Tensor) -> None:
        """Changes `logits` (contiguous float32 [R, V]) in place.

        The penalties are those of the field: repetition (Keskar et al., "CTRL", 2019) divides positive and multiplies
        negative logits of prompt and output tokens; presence and frequency are OpenAI's, over output tokens.
        """
        flat = logits.view(-1)
        if self._bias_at:
            flat.index_add_(0, _joined(self._bias_at, flat), _joined(self._bias, flat))
        if self._forbidden_at:
            flat.index_fill_(0, _joined(self._forbidden_at, flat), -torch.inf)
        if self._penalised:
            self._penalise(flat)

    def _penalise(self, flat: Tensor) -> None:
        at = _joined([at for at, _ in self._penalised], flat)
        counts = _joined([penalties.counts for _, penalties in self._penalised], flat)
        strengths = np.array([(p.repetition, p.presence, p.frequency) for _, p in self._penalised], np.float32)
        sizes = [len(at) for at, _ in self._penalised]
        repetition, presence, frequency = torch.from_numpy(np.repeat(strengths, sizes, axis=0).T).to(flat.device)
        values = flat.index_select(0, at)
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= frequency * counts + presence * (counts > 0)
        flat.index_copy_(0, at, values)


def _joined(parts: Sequence[NDArray[Any]], like: Tensor) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(like.device)
