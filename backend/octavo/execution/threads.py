"""How many threads compute."""

from __future__ import annotations

import math
import os
from pathlib import Path

from octavo.execution.control_groups import cpu_quota

_CPU_ROOT = Path("/sys/devices/system/cpu")


def default_num_threads() -> int:
    """Physical cores this process may run on, within its control group's quota. A second hyper-thread of a core adds
    no arithmetic units, and its barrier waits cost."""
    allowed = os.sched_getaffinity(0)
    cores = len({_core_of(cpu) for cpu in allowed})
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def _core_of(cpu: int) -> str:
    try:
        return (_CPU_ROOT / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)
