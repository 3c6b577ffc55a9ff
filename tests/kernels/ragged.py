"""Ragged batches over a native and a reference cache that hold the same keys and values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import octavo_kernels as kernels
from octavo_kernels import AttentionBatch, KVCache, reference

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads of a model, and its cache's blocks."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int = 16
    dtype: torch.dtype = torch.float32


@dataclass(slots=True)
class Ragged:
    native: KVCache
    reference: KVCache
    batch: AttentionBatch
    query: torch.Tensor


def poisoned_cache(shape: Shape, num_blocks: int) -> KVCache:
    """A native cache of NaN: what is read before it was written shows."""
    cache = kernels.allocate_kv_cache(num_blocks, shape.block_size, shape.kv_heads, shape.head_dim, shape.dtype, CPU)
    assert cache.native is not None
    cache.keys.fill_(float("nan"))
    cache.values.fill_(float("nan"))
    return cache


def ragged(shape: Shape, lengths: Sequence[tuple[int, int]], *, scale: float = 1.0) -> Ragged:
    """A sequence for each (context, new tokens), its blocks shuffled; queries are a part of a wider tensor."""
    counts = [math.ceil(context / shape.block_size) for context, _ in lengths]
    num_blocks = sum(counts) + 2
    native = poisoned_cache(shape, num_blocks)
    plain = reference.allocate_kv_cache(num_blocks, shape.block_size, shape.kv_heads, shape.head_dim, shape.dtype, CPU)
    order = torch.randperm(num_blocks)
    table = torch.full((len(lengths), max(counts)), 2**30, dtype=torch.int32)
    taken, slots = 0, []
    for row, ((context, new), count) in enumerate(zip(lengths, counts, strict=True)):
        blocks = order[taken : taken + count]
        taken += count
        table[row, :count] = blocks.int()
        positions = torch.arange(context)
        places = blocks[positions // shape.block_size] * shape.block_size + positions % shape.block_size
        slots.append(places[context - new :])
        key, value = (torch.randn(context, shape.kv_heads, shape.head_dim).to(shape.dtype) for _ in range(2))
        kernels.write_kv(key, value, native, places)
        reference.write_kv(key, value, plain, places)
    starts = [0, *itertools.accumulate(new for _, new in lengths)]
    batch = AttentionBatch(
        query_start=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor([context for context, _ in lengths], dtype=torch.int32),
        block_table=table,
        slot_mapping=torch.cat(slots),
        max_query_len=max(new for _, new in lengths),
        max_seq_len=max(context for context, _ in lengths),
    )
    wide = torch.randn(starts[-1], (shape.heads + 2) * shape.head_dim) * scale
    query = wide.to(shape.dtype)[:, : shape.heads * shape.head_dim].view(-1, shape.heads, shape.head_dim)
    return Ragged(native, plain, batch, query)
