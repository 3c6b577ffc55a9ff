"""How large the KV cache may be: arithmetic over numbers, and the reading of those numbers from the system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from octavo.errors import ConfigError

MiB = 1 << 20
# Left alone whatever is configured: activations, the front's process, the page cache of the model's file.
_CPU_MARGIN = 512 * MiB
_CGROUP_ROOT = Path("/sys/fs/cgroup")


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


def available_memory(root: Path = _CGROUP_ROOT) -> int:
    """Bytes this process may still take: what the system has free, and what its control group leaves."""
    free = int(psutil.virtual_memory().available)
    left = cgroup_memory_left(root)
    return free if left is None else min(free, left)


def cgroup_memory_left(root: Path) -> int | None:
    """Limit minus usage of the control group mounted at `root`, version 2 or 1; None without a limit.

    Reclaimable file pages count as free: they are given up under pressure.
    """
    for limit_file, usage_file, stat_file, inactive in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        limit, usage = _read_number(root / limit_file), _read_number(root / usage_file)
        if limit is None or usage is None:
            continue
        # Version 1 writes "no limit" as a number near 2^63.
        if limit >= 1 << 60:
            return None
        return max(0, limit - usage + _read_stat(root / stat_file, inactive))
    return None


def cgroup_cpu_quota(root: Path = _CGROUP_ROOT) -> float | None:
    """CPUs' worth of time the control group may use; None without a limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    quota_us, period_us = _read_number(root / "cpu/cpu.cfs_quota_us"), _read_number(root / "cpu/cpu.cfs_period_us")
    if quota_us is None or period_us is None or quota_us <= 0 or period_us <= 0:
        return None
    return quota_us / period_us


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_stat(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)
