"""The one door to the compute kernels: callers name a kernel, the door picks its implementation.

With the native extension, CPU tensors of its types go to it, all others to the plain PyTorch reference, whose functions
say what each kernel does. An implementation is a module with the reference's functions; it is chosen here alone.
"""

from __future__ import annotations

from octavo_kernels.batch import AttentionBatch
from octavo_kernels.cpu.isa import SELECTION, Isa
from octavo_kernels.kv_cache import KVCache
from octavo_kernels.packed_weight import PackedWeight, pack_weight

if SELECTION.native is not None:
    from octavo_kernels.cpu.ops import (
        allocate_kv_cache,
        argmax,
        copy_blocks,
        fused_add_rms_norm,
        gelu_and_mul,
        kv_bytes_per_block,
        paged_attention,
        rms_norm,
        rotary_and_write_kv,
        rotary_embedding,
        silu_and_mul,
        write_kv,
    )
else:
    from octavo_kernels.reference import (
        allocate_kv_cache,
        argmax,
        copy_blocks,
        fused_add_rms_norm,
        gelu_and_mul,
        kv_bytes_per_block,
        paged_attention,
        rms_norm,
        rotary_and_write_kv,
        rotary_embedding,
        silu_and_mul,
        write_kv,
    )

__all__ = [
    "AttentionBatch",
    "Isa",
    "KVCache",
    "PackedWeight",
    "allocate_kv_cache",
    "argmax",
    "copy_blocks",
    "cpu_isa",
    "fused_add_rms_norm",
    "gelu_and_mul",
    "kv_bytes_per_block",
    "missing_cpu_kernels",
    "pack_weight",
    "paged_attention",
    "rms_norm",
    "rotary_and_write_kv",
    "rotary_embedding",
    "set_cpu_isa",
    "silu_and_mul",
    "write_kv",
]


def cpu_isa() -> Isa:
    """What CPU kernels use."""
    return SELECTION.isa


def set_cpu_isa(isa: Isa) -> None:
    """Uses `isa` from now on; caches that exist keep their layout, so make them again.

    Raises:
        ValueError: this machine or this build does not have it.
    """
    SELECTION.choose(isa)


def missing_cpu_kernels() -> str | None:
    """Why the native CPU kernels are not there, and what to install; None if they are, or are not wanted."""
    return SELECTION.missing
