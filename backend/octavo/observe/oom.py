"""How often the kernel has killed a process for want of memory."""

from __future__ import annotations

from pathlib import Path


def oom_kills(path: Path = Path("/proc/vmstat")) -> int | None:
    """Kills since the machine's start, by its counter; None where there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
