"""The door's functions over the extension. What it does not take goes to the reference, unless the cache's layout is
the extension's own: then it raises."""

from __future__ import annotations

from typing import Any

import torch

from octavo_kernels import reference
from octavo_kernels.batch import AttentionBatch
from octavo_kernels.cpu import _native
from octavo_kernels.cpu.isa import Isa
from octavo_kernels.kv_cache import KVCache

_TYPES: dict[torch.dtype, int] = {torch.float32: 0, torch.bfloat16: 1}
_PLAIN, _PAIRED = 0, 1
_BLOCK_SIZES = (16, 32, 64, 128, 256)  # whole vectors of keys, and a whole number of blocks in a chunk of 256
_MAX_HEAD_DIM = 256
_SILU, _GELU, _GELU_TANH = 0, 1, 2

copy_blocks = reference.copy_blocks
rotary_embedding = reference.rotary_embedding


def _layout(block_size: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> tuple[int, int, int] | None:
    """Layout, key and value dimensions of a native cache (cache.hpp), or None where the reference's is used."""
    if device.type != "cpu" or dtype not in _TYPES or block_size not in _BLOCK_SIZES:
        return None
    if head_dim % 8 or not 8 <= head_dim <= _MAX_HEAD_DIM:
        return None
    value_dim = -(-head_dim // 16) * 16
    if dtype is torch.bfloat16 and _native.active_isa() == Isa.AMX:
        return _PAIRED, -(-head_dim // 32) * 32, value_dim
    return _PLAIN, head_dim, value_dim


def kv_bytes_per_block(
    block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> int:
    layout = _layout(block_size, head_dim, dtype, device)
    if layout is None:
        return reference.kv_bytes_per_block(block_size, num_kv_heads, head_dim, dtype, device)
    _, key_dim, value_dim = layout
    return block_size * num_kv_heads * (key_dim + value_dim) * dtype.itemsize


def allocate_kv_cache(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> KVCache:
    found = _layout(block_size, head_dim, dtype, device)
    if found is None:
        return reference.allocate_kv_cache(num_blocks, block_size, num_kv_heads, head_dim, dtype, device)
    layout, key_dim, value_dim = found
    if layout == _PAIRED:
        key_shape: tuple[int, ...] = (num_blocks, num_kv_heads, key_dim // 2, block_size, 2)
        value_shape: tuple[int, ...] = (num_blocks, num_kv_heads, block_size // 2, value_dim, 2)
    else:
        key_shape = (num_blocks, num_kv_heads, key_dim, block_size)
        value_shape = (num_blocks, num_kv_heads, block_size, value_dim)
    keys, values = (torch.empty(shape, dtype=dtype, device=device) for shape in (key_shape, value_shape))
    native = _native.Cache(
        keys.data_ptr(),
        values.data_ptr(),
        _TYPES[dtype],
        layout,
        num_kv_heads,
        head_dim,
        key_dim,
        value_dim,
        block_size,
    )
    return KVCache(keys, values, num_blocks, block_size, num_kv_heads, head_dim, native)


def write_kv(key: torch.Tensor, value: torch.Tensor, cache: KVCache, slot_mapping: torch.Tensor) -> None:
    if cache.native is None:
        reference.write_kv(key, value, cache, slot_mapping)
        return
    _write(cache.native, None, key, value, None, None, slot_mapping, 0, False)


def rotary_and_write_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: KVCache,
    slot_mapping: torch.Tensor,
    *,
    rotary_dim: int,
    interleaved: bool = False,
) -> None:
    if cache.native is None:
        reference.rotary_and_write_kv(
            query, key, value, positions, cos_sin, cache, slot_mapping, rotary_dim=rotary_dim, interleaved=interleaved
        )
        return
    _write(cache.native, query, key, value, positions, cos_sin, slot_mapping, rotary_dim, interleaved)


def _write(
    native: Any,
    query: torch.Tensor | None,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor | None,
    cos_sin: torch.Tensor | None,
    slot_mapping: torch.Tensor,
    rotary_dim: int,
    interleaved: bool,
) -> None:
    if query is not None and not _rows_of_heads(query):
        raise ValueError("query must be [T, heads, head_dim] with contiguous heads")
    if not _rows_of_heads(value):
        value = value.contiguous()
    if not _rows_of_heads(key):
        key = key.contiguous()
    dtype = _TYPES.get(key.dtype)
    if dtype is None or value.dtype is not key.dtype or (query is not None and query.dtype is not key.dtype):
        raise TypeError(f"query, key and value must be one of float32 and bfloat16, but key is {key.dtype}")
    _native.rotary_and_write(
        native,
        0 if query is None else query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        dtype,
        key.shape[0],
        0 if query is None else query.stride(0),
        key.stride(0),
        value.stride(0),
        0 if query is None else query.shape[1],
        0 if positions is None else positions.data_ptr(),
        0 if cos_sin is None else cos_sin.data_ptr(),
        rotary_dim,
        interleaved,
        slot_mapping.data_ptr(),
    )


def _rows_of_heads(tensor: torch.Tensor) -> bool:
    """[T, heads, head_dim] whose tokens may lie apart, as in a part of the fused projection."""
    return tensor.stride(2) == 1 and tensor.stride(1) == tensor.shape[2]


def paged_attention(
    query: torch.Tensor,
    cache: KVCache,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    if cache.native is None:
        return reference.paged_attention(
            query,
            cache,
            batch,
            scale=scale,
            sliding_window=sliding_window,
            soft_cap=soft_cap,
            alibi_slopes=alibi_slopes,
            out=out,
        )
    dtype = _TYPES.get(query.dtype)
    if dtype is None:
        raise TypeError(f"query must be float32 or bfloat16 for a native cache, not {query.dtype}")
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype)
    elif out.dtype is not query.dtype or not _rows_of_heads(out):
        raise ValueError("out must have query's dtype and contiguous heads")
    if not _rows_of_heads(query):
        query = query.contiguous()
    if alibi_slopes is not None:
        alibi_slopes = alibi_slopes.to(torch.float32).contiguous()
    table = batch.block_table
    _native.paged_attention(
        cache.native,
        query.data_ptr(),
        out.data_ptr(),
        dtype,
        query.stride(0),
        out.stride(0),
        batch.query_start.data_ptr(),
        batch.seq_lens.data_ptr(),
        table.data_ptr(),
        table.stride(0),
        table.shape[0],
        query.shape[1],
        scale,
        sliding_window or 0,
        soft_cap or 0.0,
        0 if alibi_slopes is None else alibi_slopes.data_ptr(),
    )
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
    dtype = _TYPES.get(x.dtype)
    if dtype is None or weight.dtype is not x.dtype or not _rows(x) or not _fits(out, x):
        return reference.rms_norm(x, weight, eps, out)
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype)
    rows, size = x.shape
    _native.rms_norm(
        x.data_ptr(),
        0,
        weight.data_ptr(),
        out.data_ptr(),
        dtype,
        rows,
        size,
        x.stride(0),
        0,
        out.stride(0),
        eps,
    )
    return out


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None
) -> torch.Tensor:
    dtype = _TYPES.get(x.dtype)
    if (
        dtype is None
        or weight.dtype is not x.dtype
        or residual.dtype is not x.dtype
        or not _rows(x)
        or not _rows(residual)
        or not _fits(out, x)
    ):
        return reference.fused_add_rms_norm(x, residual, weight, eps, out)
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype)
    rows, size = x.shape
    _native.rms_norm(
        x.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        dtype,
        rows,
        size,
        x.stride(0),
        residual.stride(0),
        out.stride(0),
        eps,
    )
    return out


def silu_and_mul(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    return _gate(x, out, _SILU) if _gates(x, out) else reference.silu_and_mul(x, out)


def gelu_and_mul(x: torch.Tensor, out: torch.Tensor | None = None, *, approximate: str = "none") -> torch.Tensor:
    if not _gates(x, out):
        return reference.gelu_and_mul(x, out, approximate=approximate)
    return _gate(x, out, _GELU_TANH if approximate == "tanh" else _GELU)


def _gate(x: torch.Tensor, out: torch.Tensor | None, activation: int) -> torch.Tensor:
    rows, width = x.shape
    size = width // 2
    if out is None:
        out = torch.empty((rows, size), dtype=x.dtype)
    _native.gate(
        x.data_ptr(),
        out.data_ptr(),
        _TYPES[x.dtype],
        activation,
        rows,
        size,
        x.stride(0),
        out.stride(0),
    )
    return out


def argmax(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if x.dtype is not torch.float32 or not _rows(x) or not x.shape[1]:
        return reference.argmax(x)
    rows, size = x.shape
    peaks, columns = torch.empty(rows, dtype=torch.float32), torch.empty(rows, dtype=torch.int64)
    _native.argmax(x.data_ptr(), columns.data_ptr(), peaks.data_ptr(), rows, size, x.stride(0))
    return peaks, columns


def _rows(x: torch.Tensor) -> bool:
    return x.is_cpu and x.dim() == 2 and x.stride(1) == 1


def _fits(out: torch.Tensor | None, x: torch.Tensor) -> bool:
    return out is None or (out.dtype is x.dtype and out.shape == x.shape and _rows(out))


def _gates(x: torch.Tensor, out: torch.Tensor | None) -> bool:
    if x.dtype not in _TYPES or not _rows(x) or x.shape[1] % 2:
        return False
    return out is None or (out.dtype is x.dtype and _rows(out) and out.shape == (x.shape[0], x.shape[1] // 2))
