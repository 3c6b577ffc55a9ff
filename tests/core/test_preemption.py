"""Who gives up blocks, and what a plan in the making forgets of a victim."""

from __future__ import annotations

import pytest

from octavo.core.draft import Draft
from octavo.core.entry import Entry, Standing
from octavo.core.integrity import IntegrityError
from octavo.core.kv_cache import KVCache
from octavo.core.preemption import choose_victim
from octavo.core.step import StepRow
from tests.core.fake_runner import make_sequence


def make_entry(kv_cache: KVCache, serial: int, num_tokens: int, priority: int = 0) -> Entry:
    entry = Entry(make_sequence(prompt=num_tokens + 1), Standing(priority, 0.0, serial, 0), {}, 0, None)
    kv_cache.grow(entry, num_tokens)
    entry.sequence.num_computed_tokens = num_tokens
    return entry


def make_fork(kv_cache: KVCache, parent: Entry, serial: int) -> Entry:
    entry = Entry(make_sequence(prompt=parent.sequence.num_tokens), Standing(0, 0.0, serial, 0), {}, 0, None)
    kv_cache.fork(parent, entry)
    return entry


def test_the_cheapest_but_never_the_first() -> None:
    kv_cache = KVCache(32, 4, True)
    first, dear, cheap, twin = (make_entry(kv_cache, serial, n) for serial, n in enumerate([1, 9, 5, 5]))
    assert choose_victim([first, dear, cheap], kv_cache) is cheap
    assert choose_victim([first, dear, cheap, twin], kv_cache) is twin, "the later one of equals"


def test_priority_comes_before_cost() -> None:
    kv_cache = KVCache(32, 4, True)
    entries = [
        make_entry(kv_cache, serial, n, priority) for serial, (n, priority) in enumerate([(9, 0), (1, 0), (9, 3)])
    ]
    assert choose_victim(entries, kv_cache) is entries[2]


def test_a_fork_that_would_free_nothing_is_spared() -> None:
    """Fresh forks cost nothing to recompute; all of them were once preempted in vain before a block came free."""
    kv_cache = KVCache(32, 4, True)
    first, other = make_entry(kv_cache, 0, 9), make_entry(kv_cache, 1, 20)
    forks = [make_fork(kv_cache, first, serial) for serial in (2, 3)]
    assert choose_victim([first, other, *forks], kv_cache) is other
    assert choose_victim([first, *forks], kv_cache) is forks[1]


def test_what_others_own_too_costs_nothing() -> None:
    kv_cache = KVCache(32, 4, True)
    first, alone = make_entry(kv_cache, 0, 16), make_entry(kv_cache, 1, 8)
    fork = make_fork(kv_cache, first, 2)
    kv_cache.grow(fork, 20)
    fork.sequence.num_computed_tokens = 20
    assert choose_victim([first, alone, fork], kv_cache) is fork


def test_alone_there_is_no_victim() -> None:
    kv_cache = KVCache(32, 4, True)
    with pytest.raises(IntegrityError, match="does not fit"):
        choose_victim([make_entry(kv_cache, 0, 4)], kv_cache)


def test_dropping_returns_the_tokens_to_the_budget() -> None:
    entry = make_entry(KVCache(32, 4, True), 0, 4)
    draft = Draft(budget=10, freed_slots=[])
    draft.rows[entry] = StepRow(0, 4, 3, 0)
    draft.added[entry] = [1]
    assert draft.drop(entry) is None
    assert (draft.budget, draft.rows, draft.added) == (13, {}, {})
