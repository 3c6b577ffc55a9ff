"""Which running sequence gives up its blocks when there are none left."""

from __future__ import annotations

from octavo.core.entry import Entry, Standing
from octavo.core.integrity import IntegrityError
from octavo.core.kv_cache import KVCache


def choose_victim(running: list[Entry], kv_cache: KVCache) -> Entry:
    """Among the lowest priority, the one cheapest to recompute.

    The cost is the tokens whose KV nobody else owns. A victim that would free no block is taken only if all of its
    priority free none; among equals the latest to arrive goes. `running[0]`, the best standing, is never chosen: it
    always gets on, finishes, and makes the next one the best, so that preemption cannot go round in circles.

    Args:
        running: best standing first.

    Raises:
        IntegrityError: only the best runs; admission has made sure that it fits the cache alone.
    """
    if len(running) < 2:
        raise IntegrityError("the only running sequence does not fit the KV cache")
    return max(running[1:], key=lambda entry: _expendability(entry, kv_cache))


def _expendability(entry: Entry, kv_cache: KVCache) -> tuple[int, bool, int, Standing]:
    sequence = entry.sequence
    shared = kv_cache.num_shared(entry)
    cost = sequence.num_computed_tokens - min(shared * kv_cache.block_size, sequence.num_computed_tokens)
    return entry.standing.priority, shared < len(sequence.block_ids), -cost, entry.standing
