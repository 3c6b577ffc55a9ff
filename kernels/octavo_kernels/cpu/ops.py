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
    tokens, _, dim = key.shape
    dtype = key.dtype
    if dtype not in _TYPES or value.dtype is not dtype or (query is not None and query.dtype is not dtype):
        raise TypeError(f"query, key and value must be one of float32 and bfloat16, but key is {dtype}")
    key, key_stride = _rows_of_heads(key, dim)
    value, value_stride = _rows_of_heads(value, dim)
    query_data = query_stride = heads = 0
    if query is not None:
        query_data, (query_stride, head_stride, unit), heads = query.data_ptr(), query.stride(), query.shape[1]
        if unit != 1 or head_stride != dim:
            raise ValueError("query must be [T, heads, head_dim] with contiguous heads")
    _native.rotary_and_write(
        native,
        query_data,
        key.data_ptr(),
        value.data_ptr(),
        _TYPES[dtype],
        tokens,
        query_stride,
        key_stride,
        value_stride,
        heads,
        0 if positions is None else positions.data_ptr(),
        0 if cos_sin is None else cos_sin.data_ptr(),
        rotary_dim,
        interleaved,
        slot_mapping.data_ptr(),
    )


def _rows_of_heads(tensor: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, int]:
    """[T, heads, head_dim] and its stride between tokens, which may lie apart, as in a part of the fused projection."""
    stride, head_stride, unit = tensor.stride()
    if unit == 1 and head_stride == head_dim:
        return tensor, stride
    tensor = tensor.contiguous()
    return tensor, tensor.stride(0)


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
    dtype = query.dtype
    if dtype not in _TYPES:
        raise TypeError(f"query must be float32 or bfloat16 for a native cache, not {dtype}")
    dim = cache.head_dim
    query, query_stride = _rows_of_heads(query, dim)
    if out is None:
        out = torch.empty(query.shape, dtype=dtype)
    out_stride, head_stride, unit = out.stride()
    if out.dtype is not dtype or unit != 1 or head_stride != dim or out.shape != query.shape:
        raise ValueError("out must have query's shape and dtype, and contiguous heads")
    if alibi_slopes is not None:
        alibi_slopes = alibi_slopes.to(torch.float32).contiguous()
    table = batch.block_table
    _native.paged_attention(
        cache.native,
        query.data_ptr(),
        out.data_ptr(),
        _TYPES[dtype],
        query_stride,
        out_stride,
        batch.query_start.data_ptr(),
        batch.seq_lens.data_ptr(),
        table.data_ptr(),
        table.stride(0),
        len(table),
        query.shape[1],
        scale,
        sliding_window or 0,
        soft_cap or 0.0,
        0 if alibi_slopes is None else alibi_slopes.data_ptr(),
    )
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
    return _norm(x, None, weight, eps, out)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None
) -> torch.Tensor:
    return _norm(x, residual, weight, eps, out)


def _norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, out: torch.Tensor | None
) -> torch.Tensor:
    dtype, shape = x.dtype, x.shape
    x_stride = _row_stride(x, dtype, shape)
    out_stride = shape[-1] if out is None else _row_stride(out, dtype, shape)
    residual_stride = 0 if residual is None else _row_stride(residual, dtype, shape)
    if x_stride < 0 or out_stride < 0 or residual_stride < 0 or weight.dtype is not dtype or dtype not in _TYPES:
        if residual is None:
            return reference.rms_norm(x, weight, eps, out)
        return reference.fused_add_rms_norm(x, residual, weight, eps, out)
    if out is None:
        out = torch.empty(shape, dtype=dtype)
    rows, size = shape
    _native.rms_norm(
        x.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        _TYPES[dtype],
        rows,
        size,
        x_stride,
        residual_stride,
        out_stride,
        eps,
    )
    return out


def silu_and_mul(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    gated = _gate(x, out, _SILU)
    return reference.silu_and_mul(x, out) if gated is None else gated


def gelu_and_mul(x: torch.Tensor, out: torch.Tensor | None = None, *, approximate: str = "none") -> torch.Tensor:
    gated = _gate(x, out, _GELU_TANH if approximate == "tanh" else _GELU)
    return reference.gelu_and_mul(x, out, approximate=approximate) if gated is None else gated


def _gate(x: torch.Tensor, out: torch.Tensor | None, activation: int) -> torch.Tensor | None:
    dtype = x.dtype
    x_stride = _row_stride(x, dtype, x.shape)
    if x_stride < 0 or dtype not in _TYPES:
        return None
    rows, width = x.shape
    size = width // 2
    if out is None:
        out = torch.empty((rows, size), dtype=dtype)
    out_stride = _row_stride(out, dtype, (rows, size))
    if out_stride < 0 or width % 2:
        return None
    _native.gate(x.data_ptr(), out.data_ptr(), _TYPES[dtype], activation, rows, size, x_stride, out_stride)
    return out


def argmax(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    stride = _row_stride(x, torch.float32, x.shape)
    if stride < 0 or not x.shape[1]:
        return reference.argmax(x)
    rows, size = x.shape
    peaks, columns = torch.empty(rows, dtype=torch.float32), torch.empty(rows, dtype=torch.int64)
    _native.argmax(x.data_ptr(), columns.data_ptr(), peaks.data_ptr(), rows, size, stride)
    return peaks, columns


def _row_stride(x: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    """Elements from a row of a matrix on the CPU to the next; -1 if it is not one of `shape` the kernels can walk."""
    strides = x.stride()
    if len(strides) != 2 or strides[1] != 1 or x.shape != shape or x.dtype is not dtype or not x.is_cpu:
        return -1
    return strides[0]
