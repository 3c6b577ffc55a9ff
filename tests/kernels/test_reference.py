"""The reference kernels against a dense float64 formulation that shares nothing with them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from octavo_kernels import AttentionBatch, KVCache
from octavo_kernels import reference as kernels

CPU = torch.device("cpu")


def dense_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    alibi_slopes: torch.Tensor | None,
) -> torch.Tensor:
    """One head at a time, one query at a time, over the keys it may see: the definition, in float64."""
    num_queries, num_heads, _ = query.shape
    length, num_kv_heads, _ = keys.shape
    out = torch.zeros_like(query, dtype=torch.float64)
    for head in range(num_heads):
        kv_head = head * num_kv_heads // num_heads
        for row in range(num_queries):
            position = length - num_queries + row
            first = 0 if sliding_window is None else max(0, position - sliding_window + 1)
            k = keys[first : position + 1, kv_head].double()
            scores = k @ query[row, head].double() * scale
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            if alibi_slopes is not None:
                scores = scores + alibi_slopes[head].double() * (torch.arange(first, position + 1) - position)
            out[row, head] = torch.softmax(scores, 0) @ values[first : position + 1, kv_head].double()
    return out


def paged(
    lengths: list[tuple[int, int]], *, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[KVCache, AttentionBatch, list[torch.Tensor], list[torch.Tensor]]:
    """A cache with shuffled blocks that holds a sequence for each (context, new tokens), and garbage elsewhere."""
    counts = [math.ceil(context / block_size) for context, _ in lengths]
    num_blocks = sum(counts) + 3
    cache = kernels.allocate_kv_cache(num_blocks, block_size, kv_heads, head_dim, dtype, CPU)
    cache.keys.fill_(float("nan"))
    cache.values.fill_(float("nan"))
    order = torch.randperm(num_blocks)
    table = torch.full((len(lengths), max(counts)), num_blocks + 7, dtype=torch.int32)
    keys, values, taken, new_slots = [], [], 0, []
    for row, ((context, new), count) in enumerate(zip(lengths, counts, strict=True)):
        blocks = order[taken : taken + count]
        taken += count
        table[row, :count] = blocks.int()
        positions = torch.arange(context)
        slots = blocks[positions // block_size] * block_size + positions % block_size
        keys.append(torch.randn(context, kv_heads, head_dim, dtype=dtype))
        values.append(torch.randn(context, kv_heads, head_dim, dtype=dtype))
        kernels.write_kv(keys[-1], values[-1], cache, slots)
        new_slots.append(slots[context - new :])
    starts = torch.tensor([0, *torch.tensor([new for _, new in lengths]).cumsum(0).tolist()], dtype=torch.int32)
    batch = AttentionBatch(
        query_start=starts,
        seq_lens=torch.tensor([context for context, _ in lengths], dtype=torch.int32),
        block_table=table,
        slot_mapping=torch.cat(new_slots),
        max_query_len=max(new for _, new in lengths),
        max_seq_len=max(context for context, _ in lengths),
    )
    return cache, batch, keys, values


VARIANTS: list[dict[str, Any]] = [
    {},
    {"sliding_window": 5},
    {"sliding_window": 1},
    {"soft_cap": 2.0},
    {"alibi": True},
    {"sliding_window": 9, "soft_cap": 5.0, "alibi": True},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(v) or "plain")
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 16), (6, 2, 24), (8, 1, 32)])
def test_attention_over_ragged_batches(
    variant: dict[str, Any], block_size: int, heads: int, kv_heads: int, head_dim: int
) -> None:
    torch.manual_seed(heads * block_size)
    size = block_size
    lengths = [(1, 1), (size - 1, 1), (size, 1), (size + 1, 1), (3 * size + 2, 7), (size, size), (2 * size, size + 1)]
    cache, batch, keys, values = paged(
        lengths, block_size=size, kv_heads=kv_heads, head_dim=head_dim, dtype=torch.float32
    )
    query = torch.randn(int(batch.query_start[-1]), heads, head_dim)
    options = {
        "scale": head_dim**-0.5,
        "sliding_window": variant.get("sliding_window"),
        "soft_cap": variant.get("soft_cap"),
        "alibi_slopes": torch.linspace(0.1, 0.9, heads) if variant.get("alibi") else None,
    }
    out = torch.full_like(query, float("nan"))
    got = kernels.paged_attention(query, cache, batch, **options, out=out)
    assert got is out
    for row in range(len(lengths)):
        begin, end = batch.query_start[row : row + 2].tolist()
        want = dense_attention(query[begin:end], keys[row], values[row], **options)
        torch.testing.assert_close(got[begin:end].double(), want, atol=1e-5, rtol=1e-5)


def test_attention_in_bfloat16_rounds_only_its_result() -> None:
    torch.manual_seed(0)
    cache, batch, keys, values = paged([(50, 3), (20, 1)], block_size=16, kv_heads=2, head_dim=32, dtype=torch.bfloat16)
    query = torch.randn(4, 4, 32, dtype=torch.bfloat16)
    got = kernels.paged_attention(query, cache, batch, scale=0.2)
    assert got.dtype == torch.bfloat16
    for row, (begin, end) in enumerate(((0, 3), (3, 4))):
        want = dense_attention(
            query[begin:end], keys[row], values[row], scale=0.2, sliding_window=None, soft_cap=None, alibi_slopes=None
        )
        torch.testing.assert_close(got[begin:end].double(), want, atol=1e-2, rtol=1e-2)


def test_write_and_copy_blocks() -> None:
    caches = [kernels.allocate_kv_cache(4, 2, 1, 3, torch.float32, CPU) for _ in range(2)]
    for number, cache in enumerate(caches):
        cache.keys.fill_(-1)
        cache.values.fill_(-1)
        key = torch.arange(6.0).view(2, 1, 3) + 100 * number
        kernels.write_kv(key, key + 50, cache, torch.tensor([5, 2]))
        assert torch.equal(cache.keys[2, 1, 0], torch.tensor([0.0, 1.0, 2.0]) + 100 * number)
        assert torch.equal(cache.values[1, 0, 0], torch.tensor([53.0, 54.0, 55.0]) + 100 * number)
        assert (cache.keys != -1).sum() == 6
    kernels.copy_blocks(caches, [(2, 0), (1, 3)])
    for cache in caches:
        assert torch.equal(cache.keys[0], cache.keys[2])
        assert torch.equal(cache.values[3], cache.values[1])
    kernels.copy_blocks(caches, [])


def test_bytes_per_block_is_what_is_allocated() -> None:
    cache = kernels.allocate_kv_cache(5, 16, 3, 64, torch.bfloat16, CPU)
    allocated = cache.keys.nbytes + cache.values.nbytes
    assert allocated == 5 * kernels.kv_bytes_per_block(16, 3, 64, torch.bfloat16, CPU)


def test_norms() -> None:
    torch.manual_seed(1)
    x, residual, weight = torch.randn(5, 8), torch.randn(5, 8), torch.randn(8)

    def norm(value: torch.Tensor) -> torch.Tensor:
        wide = value.double()
        return wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()

    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-5).double(), norm(x), atol=1e-6, rtol=1e-6)
    out = torch.full_like(x, float("nan"))
    assert kernels.rms_norm(x, weight, 1e-5, out) is out
    torch.testing.assert_close(out.double(), norm(x), atol=1e-6, rtol=1e-6)
    total = residual + x
    got = kernels.fused_add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(residual, total)
    torch.testing.assert_close(got.double(), norm(total), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [8, 4])
def test_rotary_turns_each_pair_by_its_angle(interleaved: bool, rotary_dim: int) -> None:
    torch.manual_seed(2)
    frequencies = torch.tensor([1.0, 0.3, 0.05, 0.01][: rotary_dim // 2])
    positions = torch.tensor([0, 3, 11])
    angles = torch.outer(torch.arange(12.0), frequencies)
    cache = torch.cat((angles.cos(), angles.sin()), -1)
    query, key = torch.randn(3, 2, 8), torch.randn(3, 1, 8)
    before = query.clone(), key.clone()
    kernels.rotary_embedding(positions, query, key, cache, rotary_dim=rotary_dim, interleaved=interleaved)
    for turned, plain in zip((query, key), before, strict=True):
        assert torch.equal(turned[..., rotary_dim:], plain[..., rotary_dim:])
        for pair in range(rotary_dim // 2):
            a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + rotary_dim // 2)
            turn = torch.polar(torch.ones(3), angles[positions, pair])[:, None]
            want = torch.complex(plain[..., a], plain[..., b]) * turn
            torch.testing.assert_close(turned[..., a], want.real)
            torch.testing.assert_close(turned[..., b], want.imag)


def test_gated_activations() -> None:
    x = torch.linspace(-4, 4, 12).view(2, 6)
    gate, up = x[:, :3].double(), x[:, 3:].double()
    torch.testing.assert_close(kernels.silu_and_mul(x).double(), gate / (1 + (-gate).exp()) * up, atol=1e-6, rtol=1e-6)
    exact = 0.5 * gate * (1 + torch.erf(gate / math.sqrt(2))) * up
    torch.testing.assert_close(kernels.gelu_and_mul(x).double(), exact, atol=1e-6, rtol=1e-6)
    out = torch.full((2, 3), float("nan"))
    assert kernels.silu_and_mul(x, out) is out
    assert not out.isnan().any()
