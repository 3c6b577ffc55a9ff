"""Memory bandwidth: how fast this machine reads a buffer that no cache can hold.

Decoding one sequence reads every weight once a token, so weight bytes x tokens per second against this figure says how
near a step is to what the memory allows. It is measured with torch, on the threads the model runs on.
"""

from __future__ import annotations

import time

import psutil
import torch

from octavo.bench.machine import last_level_cache_bytes

_ROUNDS = 5
_CACHE_MULTIPLE = 3
_GPU_BYTES = 1 << 30


def read_bandwidth(device: str, num_bytes: int | None = None) -> float:
    """Bytes a second, the best of five passes of `max` over a float32 buffer.

    Args:
        num_bytes: of the buffer. Default: three times the last-level cache (at most a quarter of the free memory), or
            1 GiB on a GPU.
    """
    if num_bytes is None:
        cpu_bytes = min(_CACHE_MULTIPLE * last_level_cache_bytes(), psutil.virtual_memory().available // 4)
        num_bytes = _GPU_BYTES if device.startswith("cuda") else max(cpu_bytes, 1 << 20)
    # Written once, so that every page is its own and not the kernel's one page of zeros.
    buffer = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    best = min(_timed_pass(buffer) for _ in range(_ROUNDS))
    return buffer.numel() * buffer.element_size() / best


def _timed_pass(buffer: torch.Tensor) -> float:
    if buffer.is_cuda:
        torch.cuda.synchronize(buffer.device)
    start = time.perf_counter()
    buffer.max()
    if buffer.is_cuda:
        torch.cuda.synchronize(buffer.device)
    return time.perf_counter() - start
