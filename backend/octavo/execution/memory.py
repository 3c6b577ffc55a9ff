"""How large the KV cache may be: arithmetic over numbers, and the reading of those numbers from the system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from octavo.errors import ConfigError
from octavo.execution.control_groups import memory_left

MiB = 1 << 20
# Left alone whatever is configured: activations, the front's process, the page cache of the model's file.
_CPU_MARGIN = 512 * MiB


@dataclass(frozen=True, slots=True)
class KVSize:
    """The cache's size, and why it is what it is."""

    num_blocks: int
    bytes_per_block: int
    block_size: int

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.bytes_per_block

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size


def size_kv_cache(
    budget: int, *, bytes_per_block: int, block_size: int, max_model_len: int, max_num_seqs: int, knob: str
) -> KVSize:
    """As many blocks as `budget` bytes hold, but no more than `max_num_seqs` full-length sequences can use.

    Args:
        bytes_per_block: in all layers together.
        knob: the option that sets the budget, for the error.

    Raises:
        ConfigError: the budget does not hold two blocks, the least that can run anything.
    """
    most = -(-max_model_len // block_size) * max_num_seqs
    num_blocks = min(budget // bytes_per_block, most)
    if num_blocks < 2:
        raise ConfigError(
            f"the KV cache would have {max(budget, 0) / MiB:.1f} MiB, but needs at least "
            f"{2 * bytes_per_block / MiB:.1f} MiB (2 blocks of {block_size} tokens): raise {knob}",
            knob,
        )
    return KVSize(num_blocks, bytes_per_block, block_size)


def cpu_budget(available: int, utilization: float) -> int:
    """Bytes of KV cache when `available` bytes are free after the model was loaded."""
    return max(0, int((available - _CPU_MARGIN) * utilization))


def gpu_budget(total: int, free: int, utilization: float, activations: int) -> int:
    """Bytes of KV cache on a GPU of `total` bytes of which `free` are free now, weights loaded.

    Args:
        activations: what the largest step needs beside weights and cache.
    """
    return int(total * utilization) - (total - free) - activations


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed. On the CPU torch has no class of its own for that, only a text."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def available_memory(root: Path = Path("/")) -> int:
    """Bytes this process may still take: what the system has free, and what its control groups leave.

    Args:
        root: where `proc` and `sys` are mounted, for the control groups.
    """
    free = int(psutil.virtual_memory().available)
    left = memory_left(root)
    return free if left is None else min(free, left)
