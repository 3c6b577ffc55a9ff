"""Planner: which tokens run in the next step.

There are no phases: a sequence wants its known tokens computed, whether prompt or output. One budget is shared out in
four passes: sequences that want one token (decodes), so that they never stall; prefills under way; waiting sequences;
and what is then left, to the prefills again.
"""

from __future__ import annotations

from octavo.core.draft import Draft
from octavo.core.entry import Entry
from octavo.core.preemption import choose_victim
from octavo.core.roster import Roster
from octavo.core.scheduler_config import SchedulerConfig
from octavo.core.step import StepPlan, StepRow
from octavo.core.token_budget import TokenBudget

MAX_SKIPPED = 8
"""Blocked sequences looked past in one step; bounds the time spent on a long queue."""
HEADROOM_TOKENS = 24
"""Room to grow that admission leaves each running sequence. In simulations with small caches, none at all costs 5 to
15 % of throughput in recomputation, and much more than this costs as much in batch size."""


class Planner:
    """Plans steps over a roster. Counts preemptions and prefix-cache traffic."""

    def __init__(self, config: SchedulerConfig, roster: Roster) -> None:
        self.config = config
        self.budget = TokenBudget(config.max_num_batched_tokens)
        self.num_preemptions = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self._roster = roster
        self._kv_cache = roster.kv_cache
        self._step_id = 0

    def plan(self, now: float) -> tuple[StepPlan, list[Entry]]:
        """The next step, and the entries its rows belong to, in the same order."""
        draft = Draft(self.budget.tokens, self._roster.slots.announcements())
        prefills = self._plan_decodes(draft)
        self._plan_prefills(draft, prefills)
        if not draft.has_preempted:
            self._admit(draft, prefills, now)
        for entry in prefills:
            if draft.budget and entry.sequence.slot is not None and draft.remaining(entry):
                self._plan_chunk(draft, entry, draft.budget)
        for copy in draft.copies.values():
            self._kv_cache.end_copy(copy)
        self._step_id += 1
        return draft.finish(self._step_id), list(draft.rows)

    def preempt(self, entry: Entry) -> None:
        """A running sequence waits again, and is recomputed later."""
        self._roster.preempt(entry)
        self.num_preemptions += 1

    def _plan_decodes(self, draft: Draft) -> list[Entry]:
        """Plans all that want one token; returns those that want more."""
        prefills = []
        size, counts = self._kv_cache.block_size, self._kv_cache.pool.ref_counts
        for entry in tuple(self._roster.running):
            sequence = entry.sequence
            slot, start, table = sequence.slot, sequence.num_computed_tokens, sequence.block_ids
            if slot is None:
                continue
            if len(sequence.token_ids) - start > 1:
                prefills.append(entry)
                continue
            if not draft.budget:
                # Only after the device ran out of memory are there fewer tokens than sequences.
                continue
            index = start // size
            if (index >= len(table) or counts[table[index]] > 1) and not self._prepare_write(draft, entry, start + 1):
                continue
            draft.rows[entry] = StepRow(slot, start, 1, sequence.num_sequences, request_id=sequence.request_id)
            draft.budget -= 1
        return prefills

    def _plan_prefills(self, draft: Draft, prefills: list[Entry]) -> None:
        """A first chunk for each prefill under way. While others want the budget too, the threshold bounds them
        together; each has an equal part of it, so that the end of a short one doesn't wait for that of a long one."""
        if not prefills:
            return
        contended = len(prefills) > 1 or len(self._roster.waiting) > 0
        share = self.config.long_prefill_token_threshold if contended else draft.budget
        share = max(1, share // len(prefills))
        for entry in prefills:
            if draft.budget and entry.sequence.slot is not None:
                self._plan_chunk(draft, entry, share)

    def _admit(self, draft: Draft, prefills: list[Entry], now: float) -> None:
        """Starts waiting sequences that fit; adds those that remain in mid-prefill to `prefills`."""
        roster = self._roster
        if not len(roster.waiting) or not draft.budget or not roster.slots.num_available:
            return
        num_partial = sum(draft.remaining(entry) > 0 for entry in prefills)
        claimed = sum(self._claim(entry) for entry in roster.running)
        passed: list[Entry] = []
        for entry in roster.waiting.first(roster.slots.num_available + MAX_SKIPPED):
            if not draft.budget or not roster.slots.num_available or len(passed) == MAX_SKIPPED:
                break
            prefix = self._kv_cache.find_prefix(entry) if self._has_slots(entry) else []
            want = entry.sequence.num_tokens - len(prefix) * self._kv_cache.block_size
            limit = draft.budget
            if prefills or len(roster.waiting) > 1:
                limit = min(limit, self.config.long_prefill_token_threshold)
            is_partial = want > limit
            if (
                not self._has_slots(entry)
                or (is_partial and num_partial >= self.config.max_num_partial_prefills)
                or not self._has_blocks(entry, prefix, claimed)
            ):
                if not roster.waiting.may_be_passed(entry, now):
                    break
                passed.append(entry)
                continue
            self._start(entry, prefix, now)
            roster.waiting.overtake(passed, now)
            self._plan_chunk(draft, entry, limit)
            claimed += self._claim(entry)
            if is_partial:
                num_partial += 1
                prefills.append(entry)

    def _has_slots(self, entry: Entry) -> bool:
        return entry.sequence.num_sequences <= self._roster.slots.num_available

    def _has_blocks(self, entry: Entry, prefix: list[int], claimed: int) -> bool:
        """Whether all known tokens of a waiting sequence fit, its forks' first blocks too, and leave the running ones
        their claim. A sequence admitted with less would soon be preempted, or preempt another, and its prefill would
        be wasted."""
        kv_cache = self._kv_cache
        need = kv_cache.blocks_for(entry.sequence.num_tokens) - len(prefix) + kv_cache.num_unowned(prefix)
        return need + _fork_blocks(entry) + kv_cache.blocks_for(claimed) <= kv_cache.pool.num_available

    def _claim(self, entry: Entry) -> int:
        """Tokens' worth of blocks a running sequence will soon need beyond those it has: for the rest of its known
        tokens, its forks, and some output."""
        sequence = entry.sequence
        missing = self._kv_cache.blocks_for(len(sequence.token_ids)) - len(sequence.block_ids) + _fork_blocks(entry)
        growth = min(HEADROOM_TOKENS, sequence.max_tokens - sequence.num_output_tokens)
        return missing * self._kv_cache.block_size + growth * sequence.num_sequences

    def _start(self, entry: Entry, prefix: list[int], now: float) -> None:
        sequence = entry.sequence
        self._roster.start(entry, prefix)
        if sequence.first_scheduled_time is not None:
            return
        sequence.first_scheduled_time = now
        sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
        if self.config.enable_prefix_caching and entry.prompt_logprobs is None:
            self.prefix_cache_queries += sequence.num_prompt_tokens
            self.prefix_cache_hits += sequence.num_cached_tokens

    def _plan_chunk(self, draft: Draft, entry: Entry, limit: int) -> None:
        """Gives a prefill its row, or makes it longer: at most `limit` tokens, and no more than the blocks left hold.
        Only for its first token are others preempted."""
        sequence, kv_cache = entry.sequence, self._kv_cache
        row = draft.rows.get(entry)
        start = sequence.num_computed_tokens
        end = start if row is None else row.start + row.num_tokens
        if row is None and not self._make_room(draft, entry, start + 1):
            return
        room = (len(sequence.block_ids) + kv_cache.pool.num_available) * kv_cache.block_size - end
        chunk = min(sequence.num_tokens - end, limit, draft.budget, room)
        if chunk <= 0 or sequence.slot is None or not self._prepare_write(draft, entry, end + chunk):
            return
        draft.budget -= chunk
        end += chunk
        row = draft.rows[entry] = StepRow(sequence.slot, start, end - start, 0, request_id=sequence.request_id)
        if end == sequence.num_tokens:
            row.num_samples = sequence.num_sequences
        last = sequence.num_prompt_tokens - 1
        if entry.prompt_logprobs is not None and entry.reported < min(end, last) and start < last:
            row.num_prompt_logprobs = entry.prompt_logprobs
            row.prompt_logprobs_start = entry.reported

    def _prepare_write(self, draft: Draft, entry: Entry, end: int) -> bool:
        """Makes the block table hold `end` tokens, writable; False if the sequence itself was preempted for it."""
        kv_cache = self._kv_cache
        if not self._make_room(draft, entry, end):
            return False
        if kv_cache.must_copy(entry):
            draft.copies[entry] = kv_cache.copy_on_write(entry)
        added = kv_cache.grow(entry, end)
        if added:
            draft.added.setdefault(entry, []).extend(added)
        return True

    def _make_room(self, draft: Draft, entry: Entry, end: int) -> bool:
        """Preempts until the blocks the sequence lacks up to `end` are available; False if it had to go itself."""
        while self._kv_cache.blocks_missing(entry, end) > self._kv_cache.pool.num_available:
            victim = choose_victim(self._roster.running, self._kv_cache)
            self._preempt(draft, victim)
            if victim is entry:
                return False
        return True

    def _preempt(self, draft: Draft, entry: Entry) -> None:
        copy = draft.drop(entry)
        if copy is not None:
            self._kv_cache.end_copy(copy)
        self.preempt(entry)
        draft.freed_slots.extend(self._roster.slots.announcements())
        draft.has_preempted = True


def _fork_blocks(entry: Entry) -> int:
    """Blocks that forks to come will need for their first own tokens; none if those are their last."""
    return entry.sequence.num_sequences - 1 if entry.sequence.max_tokens > 1 else 0
