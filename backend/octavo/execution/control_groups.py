"""What the process's control groups (cgroups, versions 1 and 2) leave it of memory and processor time.

A limit holds for everything below it, so the tightest of the process's own group and all groups above it counts.
Inside a container the own group may not be visible under the path that the kernel reports; the groups above it are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as a number near 2^63."""


def memory_left(root: Path = Path("/")) -> int | None:
    """Bytes to the nearest memory limit, or None without one. Inactive file pages count as free: they are reclaimed
    under pressure.

    Args:
        root: where `proc` and `sys` are mounted.
    """
    left = [_left(group, "memory.max", "memory.current", "inactive_file") for group in _groups(root, "")]
    left += [
        _left(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for group in _groups(root, "memory")
    ]
    return min((number for number in left if number is not None), default=None)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processors' worth of time the process may use, or None without a limit."""
    texts = [_read(group / "cpu.max").partition(" ")[::2] for group in _groups(root, "")]
    texts += [(_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")) for group in _groups(root, "cpu")]
    quotas = [(_number(quota), _number(period)) for quota, period in texts]
    return min((quota / period for quota, period in quotas if quota and period and quota > 0), default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of the process's group and of those above it; controller "" is version 2's one hierarchy."""
    mount = root / "sys/fs/cgroup" / controller
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            own = mount / path.strip("/")
            yield from (group for group in (own, *own.parents) if group != mount and group.is_relative_to(mount))
    yield mount


def _left(group: Path, limit_file: str, usage_file: str, reclaimable: str) -> int | None:
    limit, usage = _number(_read(group / limit_file)), _number(_read(group / usage_file))
    if limit is None or usage is None or limit >= _UNLIMITED:
        return None
    stat = dict(line.split(maxsplit=1) for line in _read(group / "memory.stat").splitlines() if " " in line)
    return max(0, limit - usage + (_number(stat.get(reclaimable, "")) or 0))


def _read(path: Path) -> str:
    """The file's text; empty if there is none to read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
