"""The flat inputs against a builder that does the same with plain loops."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.step import NewSequence, StepPlan
from octavo.execution.batch import PersistentBatch
from octavo.sampling_params import SamplingParams

SLOTS, LENGTH, SIZE, BUDGET = 6, 40, 4, 64


def batch() -> PersistentBatch:
    return PersistentBatch(
        max_num_seqs=SLOTS, max_num_tokens=BUDGET, max_model_len=LENGTH, block_size=SIZE, device=torch.device("cpu")
    )


def new(slot: int, tokens: list[int], blocks: list[int]) -> NewSequence:
    return NewSequence(slot, f"r{slot}", 0, tokens, len(tokens), SamplingParams(), 0, blocks)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_against_plain_loops(data: st.DataObject) -> None:
    slots = data.draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=SLOTS, unique=True))
    lengths = [data.draw(st.integers(1, LENGTH)) for _ in slots]
    counts = [data.draw(st.sampled_from([1, min(length, BUDGET // SLOTS), 1])) for length in lengths]
    starts = [data.draw(st.integers(0, length - count)) for length, count in zip(lengths, counts, strict=True)]
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    tokens = {slot: random.integers(0, 900, length).tolist() for slot, length in zip(slots, lengths, strict=True)}
    blocks = {
        slot: random.integers(0, 99, -(-length // SIZE)).tolist() for slot, length in zip(slots, lengths, strict=True)
    }
    held = batch()
    # Garbage from earlier steps and sequences must not shine through.
    held.apply(StepPlan(0, new=[new(slot, [901] * LENGTH, [777] * (LENGTH // SIZE)) for slot in range(SLOTS)]))
    held.build(np.arange(SLOTS), np.zeros(SLOTS, np.int64), np.full(SLOTS, BUDGET // SLOTS))
    held.apply(StepPlan(1, new=[new(slot, tokens[slot], blocks[slot]) for slot in slots]))
    inputs = held.build(np.array(slots), np.array(starts), np.array(counts))
    want_ids, want_positions, want_mapping, want_last = [], [], [], []
    for slot, start, count in zip(slots, starts, counts, strict=True):
        for position in range(start, start + count):
            want_ids.append(tokens[slot][position])
            want_positions.append(position)
            want_mapping.append(blocks[slot][position // SIZE] * SIZE + position % SIZE)
        want_last.append(len(want_ids) - 1)
    attention = inputs.attention
    assert attention.block_table.is_contiguous()
    assert inputs.token_ids.tolist() == want_ids
    assert inputs.positions.tolist() == want_positions
    assert attention.slot_mapping.tolist() == want_mapping
    assert inputs.last_rows.tolist() == want_last
    assert attention.query_start.tolist() == [0, *np.cumsum(counts).tolist()]
    ends = [start + count for start, count in zip(starts, counts, strict=True)]
    assert attention.seq_lens.tolist() == ends
    assert (attention.max_query_len, attention.max_seq_len) == (max(counts), max(ends))
    for row, (slot, end) in enumerate(zip(slots, ends, strict=True)):
        used = -(-end // SIZE)
        assert attention.block_table[row, :used].tolist() == blocks[slot][:used]


def test_blocks_are_appended_and_replaced() -> None:
    held = batch()
    held.apply(StepPlan(0, new=[new(2, list(range(9)), [5, 6, 7])]))
    held.apply(StepPlan(1, new_blocks=[(2, [8, 9])], replaced_blocks=[(2, 2, 1)]))
    inputs = held.build(np.array([2]), np.array([0]), np.array([9]))
    assert inputs.attention.block_table[0].tolist() == [5, 6, 1]
    held.append(np.array([2]), np.array([55]))
    inputs = held.build(np.array([2]), np.array([9]), np.array([1]))
    assert inputs.token_ids.tolist() == [55]
    assert inputs.attention.slot_mapping.tolist() == [1 * SIZE + 1]


def test_a_slot_is_taken_over_whole() -> None:
    held = batch()
    held.apply(StepPlan(0, new=[new(1, list(range(20)), [1, 2, 3, 4, 5])]))
    held.apply(StepPlan(1, freed_slots=[1], new=[new(1, [70, 71], [9])], new_blocks=[]))
    held.append(np.array([1]), np.array([72]))
    inputs = held.build(np.array([1]), np.array([0]), np.array([3]))
    assert inputs.token_ids.tolist() == [70, 71, 72]
    assert inputs.attention.slot_mapping.tolist() == [36, 37, 38]
