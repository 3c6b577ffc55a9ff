"""The one door to the compute kernels: callers name a kernel, the door picks its implementation.

Every device takes the plain PyTorch reference today. An implementation for a device is a module with the reference's
functions; it is chosen here, so callers never change.
"""

from __future__ import annotations

from octavo_kernels.batch import AttentionBatch
from octavo_kernels.kv_cache import KVCache
from octavo_kernels.reference import (
    allocate_kv_cache,
    copy_blocks,
    fused_add_rms_norm,
    gelu_and_mul,
    kv_bytes_per_block,
    paged_attention,
    rms_norm,
    rotary_embedding,
    silu_and_mul,
    write_kv,
)

__all__ = [
    "AttentionBatch",
    "KVCache",
    "allocate_kv_cache",
    "copy_blocks",
    "fused_add_rms_norm",
    "gelu_and_mul",
    "kv_bytes_per_block",
    "paged_attention",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
    "write_kv",
]
