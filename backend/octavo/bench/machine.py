"""Facts about the machine and the software, kept beside every result."""

from __future__ import annotations

import os
import platform
import resource
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from octavo import __version__

_CPU_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
_DEFAULT_CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """`threads` and `gpu` are those of this process's torch; None if the benchmark runs no model here."""

    cpu: str
    cpus: int
    memory_bytes: int
    gpu: str | None
    threads: int | None
    octavo: str
    torch: str | None
    python: str


def describe(*, threads: int | None = None, gpu: str | None = None) -> Machine:
    try:
        torch_version: str | None = version("torch")
    except PackageNotFoundError:
        torch_version = None
    return Machine(
        cpu=_cpu_model(),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        gpu=gpu,
        threads=threads,
        octavo=__version__,
        torch=torch_version,
        python=platform.python_version(),
    )


def peak_rss_bytes() -> int:
    """Most memory this process has ever had resident, loading included."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def last_level_cache_bytes() -> int:
    """Size of the largest CPU cache; a guess of 64 MiB where the system does not say."""
    sizes = [_cache_size(path) for path in _CPU_CACHE.glob("index*/size")]
    return max(sizes, default=_DEFAULT_CACHE_BYTES)


def _cache_size(path: Path) -> int:
    text = path.read_text().strip()
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
