"""Draft: a StepPlan in the making. What it holds for a sequence can still be dropped."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.core.entry import Entry
from octavo.core.kv_cache import BlockCopy
from octavo.core.step import NewSequence, StepPlan, StepRow


@dataclass(slots=True)
class Draft:
    """
    Attributes:
        budget: tokens the step can still take.
        added: blocks appended to each table in this step.
        has_preempted: blocks ran out, so nobody new is admitted in this step.
    """

    budget: int
    freed_slots: list[int]
    rows: dict[Entry, StepRow] = field(default_factory=dict)
    added: dict[Entry, list[int]] = field(default_factory=dict)
    copies: dict[Entry, BlockCopy] = field(default_factory=dict)
    has_preempted: bool = False

    def drop(self, entry: Entry) -> BlockCopy | None:
        """Takes everything planned for a sequence back; the copy is the caller's to end."""
        row = self.rows.pop(entry, None)
        if row is not None:
            self.budget += row.num_tokens
        self.added.pop(entry, None)
        return self.copies.pop(entry, None)

    def remaining(self, entry: Entry) -> int:
        """Known tokens of the sequence that are not computed even after this step."""
        row = self.rows.get(entry)
        planned = row.num_tokens if row is not None else 0
        return entry.sequence.num_tokens - entry.sequence.num_computed_tokens - planned

    def finish(self, step_id: int) -> StepPlan:
        """The plan. Sequences the runner has not met are announced with the table they have by now."""
        new = [entry for entry in self.rows if not entry.announced]
        for entry in new:
            self.added.pop(entry, None)
        plan = StepPlan(
            step_id=step_id,
            rows=list(self.rows.values()),
            new=[_introduction(entry) for entry in new],
            freed_slots=self.freed_slots,
            new_blocks=[(self.rows[entry].slot, blocks) for entry, blocks in self.added.items()],
            replaced_blocks=[
                (self.rows[entry].slot, copy.place, copy.destination)
                for entry, copy in self.copies.items()
                if entry.announced
            ],
            block_copies=[(copy.source, copy.destination) for copy in self.copies.values()],
        )
        for entry in new:
            entry.announced = True
        return plan


def _introduction(entry: Entry) -> NewSequence:
    sequence = entry.sequence
    if sequence.slot is None:
        raise ValueError(f"sequence {sequence.request_id}/{sequence.index} has no slot to be announced in")
    return NewSequence(
        slot=sequence.slot,
        request_id=sequence.request_id,
        index=sequence.index,
        token_ids=list(sequence.token_ids),
        num_prompt_tokens=sequence.num_prompt_tokens,
        params=sequence.params,
        seed=sequence.seed,
        block_ids=list(sequence.block_ids),
        bad_word_ids=sequence.bad_word_ids,
    )
