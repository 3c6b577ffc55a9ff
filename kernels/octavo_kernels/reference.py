"""Every kernel in plain PyTorch: slow, obviously right, the oracle of all others. Runs on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from octavo_kernels.batch import AttentionBatch
from octavo_kernels.kv_cache import KVCache


def kv_bytes_per_block(
    block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> int:
    """Bytes of one block in one layer on `device`, keys and values."""
    return 2 * block_size * num_kv_heads * head_dim * dtype.itemsize


def allocate_kv_cache(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> KVCache:
    """One layer's cache. The memory is not touched until it is written, so it costs nothing before."""
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    keys, values = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
    return KVCache(keys, values, num_blocks, block_size, num_kv_heads, head_dim)


def copy_blocks(caches: Sequence[KVCache], pairs: Sequence[tuple[int, int]]) -> None:
    """Copies whole blocks, (source, destination), in every layer. No destination is another pair's source."""
    if not pairs or not caches:
        return
    source, destination = torch.tensor(pairs, dtype=torch.int64, device=caches[0].keys.device).unbind(1)
    for cache in caches:
        cache.keys[destination] = cache.keys[source]
        cache.values[destination] = cache.values[source]


def write_kv(key: torch.Tensor, value: torch.Tensor, cache: KVCache, slot_mapping: torch.Tensor) -> None:
    """Puts keys and values [T, num_kv_heads, head_dim] where `slot_mapping` [T] says."""
    cache.keys.flatten(0, 1)[slot_mapping] = key.to(cache.keys.dtype)
    cache.values.flatten(0, 1)[slot_mapping] = value.to(cache.values.dtype)


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
    """Causal attention of ragged queries over the paged cache, prefill chunks and decodes in one call.

    Args:
        query: [T, num_heads, head_dim]; head h reads KV head h // (num_heads / num_kv_heads).
        sliding_window: a token sees itself and the `sliding_window - 1` tokens before it.
        soft_cap: scores become soft_cap * tanh(scores / soft_cap).
        alibi_slopes: [num_heads]; slope * (key position - query position) is added to the scores.
        out: [T, num_heads, head_dim] to write to.

    Returns:
        [T, num_heads, head_dim] in query's dtype; scores and softmax in float32.
    """
    out = torch.empty_like(query) if out is None else out
    starts, lengths = batch.query_start.tolist(), batch.seq_lens.tolist()
    for index, length in enumerate(lengths):
        begin, end = starts[index], starts[index + 1]
        if begin == end:
            continue
        keys, values = _gather(cache, batch.block_table[index], length)
        out[begin:end] = _attend(
            query[begin:end],
            keys,
            values,
            scale=scale,
            sliding_window=sliding_window,
            soft_cap=soft_cap,
            alibi_slopes=alibi_slopes,
        )
    return out


def _gather(cache: KVCache, table: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = table[: -(-length // cache.block_size)].long()
    keys = cache.keys[blocks].flatten(0, 1)[:length]
    values = cache.values[blocks].flatten(0, 1)[:length]
    return keys, values


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    alibi_slopes: torch.Tensor | None,
) -> torch.Tensor:
    """The last `query.shape[0]` positions of a sequence over all of its keys [S, num_kv_heads, head_dim]."""
    num_queries, num_heads, head_dim = query.shape
    length, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads
    # [num_kv_heads, group * Q, D] x [num_kv_heads, D, S]: the heads of a group share their keys.
    grouped = query.float().view(num_queries, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    grouped = grouped.reshape(num_kv_heads, group * num_queries, head_dim)
    scores = torch.bmm(grouped, keys.float().permute(1, 2, 0)) * scale
    scores = scores.view(num_kv_heads, group, num_queries, length)
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    key_position = torch.arange(length, device=query.device)
    query_position = torch.arange(length - num_queries, length, device=query.device)
    distance = key_position[None, :] - query_position[:, None]
    if alibi_slopes is not None:
        scores = scores + alibi_slopes.float().view(num_kv_heads, group, 1, 1) * distance
    if num_queries > 1 or sliding_window is not None:
        visible = distance <= 0
        if sliding_window is not None:
            visible &= distance > -sliding_window
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = torch.softmax(scores, -1).view(num_kv_heads, group * num_queries, length)
    mixed = torch.bmm(weights, values.float().transpose(0, 1))
    mixed = mixed.view(num_kv_heads, group, num_queries, head_dim).permute(2, 0, 1, 3)
    return mixed.reshape(num_queries, num_heads, head_dim).to(query.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension, computed in float32 (Zhang and Sennrich, 2019)."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    result = weight * normed.to(x.dtype)
    return result if out is None else out.copy_(result)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Adds x to the residual in place, and returns the residual's rms_norm."""
    residual.add_(x)
    return rms_norm(residual, weight, eps, out)


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    *,
    rotary_dim: int,
    interleaved: bool = False,
) -> None:
    """Rotates the first `rotary_dim` dimensions of each head, in place (Su et al., 2021).

    Args:
        positions: int64 [T].
        query, key: [T, heads, head_dim].
        cos_sin_cache: float32 [max_position, rotary_dim]: cosines, then sines, of the rotary_dim / 2 angles.
        interleaved: pairs are neighbours (GPT-J) instead of the two halves (NeoX, Llama).
    """
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, -1)
    for tensor in (query, key):
        rotated = tensor[..., :rotary_dim]
        if interleaved:
            first, second = rotated[..., 0::2].float(), rotated[..., 1::2].float()
        else:
            first, second = (half.float() for half in rotated.chunk(2, -1))
        turned = (first * cos - second * sin, second * cos + first * sin)
        joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
        rotated.copy_(joined)


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
    """rotary_embedding, the query's in place, then write_kv. What `key` holds afterwards is not defined."""
    rotary_embedding(positions, query, key, cos_sin, rotary_dim=rotary_dim, interleaved=interleaved)
    write_kv(key, value, cache, slot_mapping)


def silu_and_mul(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) * up of x = [gate | up]: [..., 2 I] -> [..., I]."""
    gate, up = x.chunk(2, -1)
    result = F.silu(gate) * up
    return result if out is None else out.copy_(result)


def gelu_and_mul(x: torch.Tensor, out: torch.Tensor | None = None, *, approximate: str = "none") -> torch.Tensor:
    """gelu(gate) * up of x = [gate | up]; `approximate` is `none` or `tanh`."""
    gate, up = x.chunk(2, -1)
    result = F.gelu(gate, approximate=approximate) * up
    return result if out is None else out.copy_(result)


def argmax(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first of each row's largest values and its column: [R, V] -> [R], int64 [R]. A NaN counts as largest."""
    if x.device.type == "cpu" and x.dtype is torch.float32:
        columns = torch.from_numpy(x.numpy().argmax(axis=-1))  # torch's own takes 4 to 20 times longer
        return x.gather(1, columns[:, None])[:, 0], columns
    values, columns = x.max(dim=-1)
    return values, columns
