"""AttentionBatch: what attention must know of a ragged batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class AttentionBatch:
    """One step's sequences, on the device of the tensors they go with. B sequences, T tokens in all.

    Attributes:
        query_start: int32 [B + 1], where each sequence's tokens begin among the T; the last entry is T.
        seq_lens: int32 [B], tokens in each sequence's context, this step's included.
        block_table: int32 [B, max_blocks]; entries past a sequence's last block mean nothing.
        slot_mapping: int64 [T], block * block_size + offset where each token's key and value go.
        max_query_len, max_seq_len: the largest of their kind, known to the host without asking the device.
    """

    query_start: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int
    max_seq_len: int
