"""Runner: one step from its plan to its tokens."""

from __future__ import annotations

import time
import traceback

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.core.step import RowResult, StepPlan, StepResult, StepRow, TokenLogprobs
from octavo.errors import DeviceMemoryError
from octavo.execution.batch import PersistentBatch, StepInputs
from octavo.execution.memory import is_out_of_memory
from octavo.model.decoder import Decoder
from octavo.sampling.sampler import NOT_FINITE, Sampler, prompt_logprobs
from octavo_kernels import KVCache, copy_blocks

_LOGITS_BYTES = 64 << 20
"""Most bytes of logits at once, prompt logprobs' included; sampling needs a few times as many on top."""


class Runner:
    """Owns the batch, the cache and the network of one device; executes plans in their order."""

    def __init__(self, decoder: Decoder, kv_caches: list[KVCache], batch: PersistentBatch, sampler: Sampler) -> None:
        self._decoder = decoder
        self._kv_caches = kv_caches
        self._batch = batch
        self._sampler = sampler
        self._logits_rows = max(1, _LOGITS_BYTES // (4 * sampler.vocab_size))

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Runs a plan. A row whose logits are unusable has an error of its own; the others have their tokens.

        Raises:
            DeviceMemoryError: the plan has been applied, but there was not enough memory to compute its rows.
        """
        self._apply(plan)
        if not plan.rows:
            return StepResult(plan.step_id, [])
        try:
            return self._compute(plan)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0] or type(error).__name__
            # What was computed so far hangs on the frames of the traceback.
            traceback.clear_frames(error.__traceback__)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        raise DeviceMemoryError(f"out of memory in a step of {plan.num_tokens} tokens: {reason}")

    def _compute(self, plan: StepPlan) -> StepResult:
        slots = np.array([row.slot for row in plan.rows], np.int64)
        starts = np.array([row.start for row in plan.rows], np.int64)
        counts = np.array([row.num_tokens for row in plan.rows], np.int64)
        samples = np.array([row.num_samples for row in plan.rows], np.int64)
        inputs = self._batch.build(slots, starts, counts)
        begin = time.perf_counter()
        hidden = self._decoder.forward(inputs.token_ids, inputs.positions, inputs.attention, self._kv_caches)
        forward_seconds = self._seconds_since(begin, hidden)
        results = [RowResult([]) for _ in plan.rows]
        sampled = np.flatnonzero(samples)
        for start in range(0, len(sampled), self._logits_rows):
            part = sampled[start : start + self._logits_rows]
            begin = time.perf_counter()
            logits = self._decoder.logits(self._pick(hidden, inputs.last_rows[part]))
            forward_seconds += self._seconds_since(begin, logits)
            drawn = self._sampler.sample(logits, slots[part], starts[part] + counts[part], samples[part])
            for place, result in zip(part.tolist(), drawn, strict=True):
                results[place] = result
        self._record(plan.rows, results)
        self._add_prompt_logprobs(plan.rows, results, hidden, inputs)
        return StepResult(plan.step_id, results, forward_seconds)

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.freed_slots:
            self._sampler.leave(slot)
        self._batch.apply(plan)
        for sequence in plan.new:
            self._sampler.enter(
                sequence.slot,
                sequence.params,
                seed=sequence.seed,
                index=sequence.index,
                num_tokens=len(sequence.token_ids),
                num_prompt_tokens=sequence.num_prompt_tokens,
                bad_word_ids=sequence.bad_word_ids,
            )
        copy_blocks(self._kv_caches, plan.block_copies)

    def _record(self, rows: list[StepRow], results: list[RowResult]) -> None:
        """The first token of each row goes on in its slot; forks bring theirs along when they enter."""
        places = [place for place, result in enumerate(results) if result.token_ids]
        if places:
            slots = np.array([rows[place].slot for place in places], np.int64)
            self._batch.append(slots, np.array([results[place].token_ids[0] for place in places], np.int64))

    def _add_prompt_logprobs(
        self, rows: list[StepRow], results: list[RowResult], hidden: torch.Tensor, inputs: StepInputs
    ) -> None:
        for row, result, last in zip(rows, results, inputs.last_rows.tolist(), strict=True):
            if row.num_prompt_logprobs is None or result.error is not None:
                continue
            # The token at position p predicts the prompt's token at p + 1.
            end = min(row.start + row.num_tokens, int(self._batch.num_prompt_tokens[row.slot]) - 1)
            begin = max(row.start, row.prompt_logprobs_start)
            first = last - row.num_tokens + 1
            found: list[TokenLogprobs] = []
            for start in range(begin, end, self._logits_rows):
                stop = min(start + self._logits_rows, end)
                places = first + np.arange(start - row.start, stop - row.start)
                targets = self._batch.token_ids[row.slot, start + 1 : stop + 1].astype(np.int64)
                part = prompt_logprobs(
                    self._decoder.logits(self._pick(hidden, places)), targets, row.num_prompt_logprobs
                )
                if part is None:
                    result.error, result.token_ids, result.logprobs = NOT_FINITE, [], None
                    break
                found += part
            if result.error is None:
                result.prompt_logprobs = found

    @staticmethod
    def _seconds_since(begin: float, made: torch.Tensor) -> float:
        """Seconds until `made` is really there."""
        if made.device.type == "cuda":
            torch.cuda.synchronize(made.device)
        return time.perf_counter() - begin

    @staticmethod
    def _pick(hidden: torch.Tensor, places: NDArray[np.int64]) -> torch.Tensor:
        if len(places) == len(hidden):
            return hidden
        return hidden[torch.from_numpy(places).to(hidden.device)]
