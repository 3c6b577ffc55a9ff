"""KVCache: one layer's keys and values. Its layout is the kernels' business; nobody else indexes into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True)
class KVCache:
    """
    Attributes:
        keys, values: one entry of the first dimension a block, so that a copied entry is a copied block. In the
            reference layout [num_blocks, block_size, num_kv_heads, head_dim].
        native: the extension's view of a cache in one of its own layouts; None in the reference layout.
    """

    keys: torch.Tensor
    values: torch.Tensor
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    native: Any = None
