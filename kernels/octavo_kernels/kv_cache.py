"""KVCache: one layer's keys and values. Its layout is the kernels' business; nobody else indexes into it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class KVCache:
    """
    Attributes:
        keys, values: [num_blocks, block_size, num_kv_heads, head_dim] in the reference layout.
    """

    keys: torch.Tensor
    values: torch.Tensor
    num_blocks: int
    block_size: int
