"""Sampler: from a step's logits to its tokens, all rows at once.

Order, as in vLLM: logit_bias; bad words and min_tokens; repetition, presence and frequency penalties; then for greedy
rows the largest logit (the lowest id among equals), for the others temperature, min_p, top_k, top_p and the draw.
Logprobs are of the model's own logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.core.step import RowResult, TokenLogprobs
from octavo.sampling import rows
from octavo.sampling.draw import Drawer, Filters
from octavo.sampling.edits import EditBatch, RowEdits, build_edits, edits_needed
from octavo.sampling.logprobs import Logprobs, logprobs
from octavo.sampling.random import seed_bits, uniforms
from octavo.sampling_params import SamplingParams

NOT_FINITE = "the model's logits are not finite (NaN or infinity) at this position; other requests are not affected"
NOTHING_LEFT = "no token is left to choose from: logit_bias, bad_words and min_tokens together forbid all of them"


class Sampler:
    """Samples for the sequences in the slots of a persistent batch, whose parameters are kept in arrays by slot.

    Args:
        vocab_size: width of the logits.
        eos_token_ids: what min_tokens forbids, with a request's stop tokens.
        history: int32 [max_num_seqs, length], the batch's own token array (prompt, then output): read, never written.
        device: of the logits.
    """

    def __init__(
        self, vocab_size: int, eos_token_ids: Sequence[int], history: NDArray[np.int32], device: torch.device
    ) -> None:
        slots = len(history)
        self.vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._history = history
        self._device = device
        self._drawer = Drawer(vocab_size, device)
        self._greedy = np.zeros(slots, bool)
        self._plain = np.zeros(slots, bool)  # greedy, without edits, logprobs or faults
        self._temperature = np.ones(slots, np.float64)
        self._top_k = np.zeros(slots, np.int64)
        self._top_p = np.ones(slots, np.float64)
        self._min_p = np.zeros(slots, np.float64)
        self._seed = np.zeros(slots, np.uint64)
        self._index = np.zeros(slots, np.int64)
        self._num_logprobs = np.full(slots, -1, np.int64)
        self._edits: dict[int, RowEdits] = {}
        self._faults: dict[int, str] = {}

    def enter(
        self,
        slot: int,
        params: SamplingParams,
        *,
        seed: int,
        index: int,
        num_tokens: int,
        num_prompt_tokens: int,
        bad_word_ids: Sequence[Sequence[int]] = (),
    ) -> None:
        """Takes up a sequence whose `num_tokens` tokens stand in `history[slot]`; `num_prompt_tokens` are prompt.

        Parameters that do not fit the vocabulary fail the sequence's first sample, not the step.
        """
        self.leave(slot)
        self._greedy[slot] = params.greedy or params.top_k == 1
        self._temperature[slot] = params.temperature
        self._top_k[slot] = params.top_k if 0 < params.top_k < self.vocab_size else self.vocab_size
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._seed[slot] = seed_bits(seed)
        self._index[slot] = index
        self._num_logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        fault = self._fault(params, bad_word_ids)
        if fault is not None:
            self._faults[slot] = fault
        elif edits_needed(params, bad_word_ids):
            ends = {*self._eos_token_ids, *params.stop_token_ids}
            ends = {token for token in ends if token < self.vocab_size}
            known = self._history[slot, :num_tokens]
            self._edits[slot] = build_edits(params, bad_word_ids, sorted(ends), known, num_prompt_tokens)
        self._plain[slot] = (
            self._greedy[slot] and params.logprobs is None and slot not in self._edits and slot not in self._faults
        )

    def leave(self, slot: int) -> None:
        """Forgets the slot's sequence."""
        self._edits.pop(slot, None)
        self._faults.pop(slot, None)

    def _fault(self, params: SamplingParams, bad_word_ids: Sequence[Sequence[int]]) -> str | None:
        named = (("logit_bias", params.logit_bias or ()), ("bad_words", [t for word in bad_word_ids for t in word]))
        for name, ids in named:
            worst = max(ids, default=0)
            if worst >= self.vocab_size:
                return f"{name}: token id {worst} is out of range; the model has {self.vocab_size} tokens"
        return None

    @torch.inference_mode()
    def sample(
        self, logits: Tensor, slots: NDArray[np.int64], lengths: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> list[RowResult]:
        """Samples one step. Penalties count the first token of each row as generated from now on.

        Args:
            logits: float32 [R, V], of the rows to sample; may be overwritten.
            slots: int64 [R], each row's slot.
            lengths: int64 [R], tokens known: the position of the token to be sampled.
            counts: int64 [R], tokens to draw from each row, for indices from the sequence's own upwards.

        Returns:
            R results; a row with logits that are not finite, with no token left, or with parameters that do not fit
            the vocabulary has an error.
        """
        logits = logits.contiguous()
        owners = np.repeat(np.arange(len(slots)), counts)
        if self._plain[slots].all():
            peaks, columns = rows.argmax(logits)
            return self._results(columns.cpu().numpy()[owners], peaks.cpu().numpy(), slots, counts)
        with_logprobs = np.flatnonzero(self._num_logprobs[slots] >= 0)
        raw = logits[torch.from_numpy(with_logprobs).to(self._device)] if len(with_logprobs) else None
        self._edit(logits, slots, lengths)
        tokens, peaks_all = self._choose(logits, slots, lengths, owners)
        results = self._results(tokens, peaks_all, slots, counts)
        if raw is not None:
            self._add_logprobs(results, raw, with_logprobs, slots)
        for slot, result in zip(slots.tolist(), results, strict=True):
            edits = self._edits.get(slot)
            if edits is not None and edits.penalties is not None and result.error is None:
                edits.penalties.add(result.token_ids[0])
        return results

    def _edit(self, logits: Tensor, slots: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        if not self._edits:
            return
        batch = EditBatch(self.vocab_size)
        for row, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
            edits = self._edits.get(slot)
            if edits is not None:
                batch.add(row, edits, self._history[slot, :length])
        batch.apply(logits)

    def _choose(
        self, logits: Tensor, slots: NDArray[np.int64], lengths: NDArray[np.int64], owners: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Tokens of all draws, int64 [D], and the rows' largest logits, float32 [R]."""
        tokens = np.zeros(len(owners), np.int64)
        peaks = np.zeros(len(slots), np.float32)
        greedy = self._greedy[slots]
        if greedy.any():
            which = np.flatnonzero(greedy)
            values, columns = rows.argmax(self._subset(logits, which))
            best = np.zeros(len(slots), np.int64)
            best[which], peaks[which] = columns.cpu().numpy(), values.cpu().numpy()
            tokens = best[owners]
        if not greedy.all():
            which = np.flatnonzero(~greedy)
            drawn = np.flatnonzero(~greedy[owners])
            by = owners[drawn]
            first = np.searchsorted(owners, by)
            draws = uniforms(self._seed[slots[by]], self._index[slots[by]] + drawn - first, lengths[by])
            at = slots[which]
            filters = Filters(self._temperature[at], self._top_k[at], self._top_p[at], self._min_p[at])
            picked, values = self._drawer.draw(self._subset(logits, which), filters, np.searchsorted(which, by), draws)
            tokens[drawn], peaks[which] = picked.cpu().numpy(), values.cpu().numpy()
        return tokens, peaks

    def _subset(self, logits: Tensor, which: NDArray[np.int64]) -> Tensor:
        return logits if len(which) == len(logits) else logits[torch.from_numpy(which).to(self._device)]

    def _results(
        self,
        tokens: NDArray[np.int64],
        peaks: NDArray[np.float32],
        slots: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> list[RowResult]:
        flat = tokens.tolist()
        ends = np.cumsum(counts).tolist()
        results = [RowResult(flat[end - count : end]) for end, count in zip(ends, counts.tolist(), strict=True)]
        for row in np.flatnonzero(~np.isfinite(peaks)).tolist():
            results[row] = RowResult([], error=NOTHING_LEFT if peaks[row] == -np.inf else NOT_FINITE)
        if self._faults:
            for row, slot in enumerate(slots.tolist()):
                if slot in self._faults:
                    results[row] = RowResult([], error=self._faults[slot])
        return results

    def _add_logprobs(
        self, results: list[RowResult], raw: Tensor, which: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> None:
        """Adds logprobs to `results[which]`; `raw` holds just those rows' logits."""
        wanted = self._num_logprobs[slots[which]].tolist()
        chosen = [results[row].token_ids for row in which.tolist()]
        sizes = [len(tokens) for tokens in chosen]
        owners = np.repeat(np.arange(len(which)), sizes)
        found = logprobs(raw, owners, np.array([t for tokens in chosen for t in tokens], np.int64), max(wanted))
        entries = iter(found.tokens([wanted[owner] for owner in owners.tolist()]))
        for row, size in zip(which.tolist(), sizes, strict=True):
            if size:
                results[row].logprobs = [next(entries) for _ in range(size)]


def prompt_logprobs(logits: Tensor, targets: NDArray[np.int64], count: int) -> list[TokenLogprobs] | None:
    """Logprobs of the tokens that followed, one a row; None if the logits are not finite.

    Args:
        logits: float32 [R, V], as the model gave them.
        targets: int64 [R], the prompt's next tokens.
        count: top logprobs for each.
    """
    found: Logprobs = logprobs(logits, np.arange(len(targets)), targets, count)
    if np.isnan(found.chosen_logprobs).any():
        return None
    return found.tokens([count] * len(targets))
