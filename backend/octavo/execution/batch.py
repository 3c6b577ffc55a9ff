"""PersistentBatch: a row for every slot, kept from step to step, and the flat inputs of one step built from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.core.step import StepPlan
from octavo_kernels import AttentionBatch


@dataclass(slots=True)
class StepInputs:
    """One step's tensors. They are views of buffers that the next step overwrites.

    Attributes:
        token_ids, positions: int64 [T].
        attention: the ragged batch they form.
        last_rows: int64 [B] on the host, index of each row's last token among the T.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionBatch
    last_rows: NDArray[np.int64]


class _Buffer:
    """A host array that is filled in place and its tensor on the device; the same memory on a CPU."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._device = device
        self._host = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self.array: NDArray[np.int64] = self._host.numpy()
        self._on_device = self._host if device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=device)

    def upload(self, count: int) -> torch.Tensor:
        """The first `count` entries, on the device."""
        if self._on_device is not self._host:
            self._on_device[:count].copy_(self._host[:count], non_blocking=True)
        return self._on_device[:count]


class PersistentBatch:
    """
    Args:
        max_num_seqs: slots.
        max_num_tokens: most tokens in one step.
        max_model_len: most tokens in one sequence.
    """

    def __init__(
        self, *, max_num_seqs: int, max_num_tokens: int, max_model_len: int, block_size: int, device: torch.device
    ) -> None:
        self._block_size = block_size
        max_blocks = -(-max_model_len // block_size)
        # numpy's zeros are not touched before they are written: memory follows the lengths really used.
        self.token_ids: NDArray[np.int32] = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self.num_tokens: NDArray[np.int64] = np.zeros(max_num_seqs, np.int64)
        self.num_prompt_tokens: NDArray[np.int64] = np.zeros(max_num_seqs, np.int64)
        self._tables: NDArray[np.int32] = np.zeros((max_num_seqs, max_blocks), np.int32)
        self._num_blocks: NDArray[np.int64] = np.zeros(max_num_seqs, np.int64)
        self._ids = _Buffer((max_num_tokens,), torch.int64, device)
        self._positions = _Buffer((max_num_tokens,), torch.int64, device)
        self._slot_mapping = _Buffer((max_num_tokens,), torch.int64, device)
        self._query_start = _Buffer((max_num_seqs + 1,), torch.int32, device)
        self._seq_lens = _Buffer((max_num_seqs,), torch.int32, device)
        self._block_table = _Buffer((max_num_seqs * max_blocks,), torch.int32, device)
        self._range = np.arange(max(max_num_tokens, max_num_seqs) + 1)

    def apply(self, plan: StepPlan) -> None:
        """Takes in what the plan says has changed. Raises ValueError if it does not fit what the batch holds."""
        for sequence in plan.new:
            slot, count, blocks = sequence.slot, len(sequence.token_ids), len(sequence.block_ids)
            self.token_ids[slot, :count] = sequence.token_ids
            self.num_tokens[slot] = count
            self.num_prompt_tokens[slot] = sequence.num_prompt_tokens
            self._tables[slot, :blocks] = sequence.block_ids
            self._num_blocks[slot] = blocks
        for slot, added in plan.new_blocks:
            start = int(self._num_blocks[slot])
            self._tables[slot, start : start + len(added)] = added
            self._num_blocks[slot] = start + len(added)
        for slot, place, block in plan.replaced_blocks:
            if place >= self._num_blocks[slot]:
                raise ValueError(f"slot {slot} has no block at place {place} to replace")
            self._tables[slot, place] = block

    def build(self, slots: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> StepInputs:
        """The inputs of a step in which slot `slots[i]` computes `counts[i]` tokens from position `starts[i]`."""
        rows = len(slots)
        total = int(counts.sum())
        ends = starts + counts
        query_start = self._query_start.array[: rows + 1]
        np.cumsum(counts, out=query_start[1:])
        positions = self._positions.array[:total]
        if total == rows:
            positions[:] = starts
            owners = slots
        else:
            # Each token's position: its place in the batch, shifted by its row's start less the row's place.
            np.add(self._range[:total], np.repeat(starts - query_start[:-1], counts), out=positions)
            owners = np.repeat(slots, counts)
        self._ids.array[:total] = self.token_ids[owners, positions]
        blocks = self._tables[owners, positions // self._block_size].astype(np.int64)
        np.add(blocks * self._block_size, positions % self._block_size, out=self._slot_mapping.array[:total])
        self._seq_lens.array[:rows] = ends
        longest = int(ends.max())
        width = -(-longest // self._block_size)
        self._block_table.array[: rows * width].reshape(rows, width)[:] = self._tables[slots, :width]
        attention = AttentionBatch(
            query_start=self._query_start.upload(rows + 1),
            seq_lens=self._seq_lens.upload(rows),
            block_table=self._block_table.upload(rows * width).view(rows, width),
            slot_mapping=self._slot_mapping.upload(total),
            max_query_len=int(counts.max()),
            max_seq_len=longest,
        )
        return StepInputs(
            self._ids.upload(total), self._positions.upload(total), attention, query_start[1:].astype(np.int64) - 1
        )

    def append(self, slots: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Records one sampled token for each of `slots`."""
        self.token_ids[slots, self.num_tokens[slots]] = token_ids
        self.num_tokens[slots] += 1
