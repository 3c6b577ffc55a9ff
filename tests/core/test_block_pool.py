"""BlockPool: counts, order of reuse, and a model it is compared with at every step."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.core.block_pool import BlockPool
from octavo.core.integrity import IntegrityError


def test_blocks_go_out_once() -> None:
    pool = BlockPool(3)
    assert sorted(pool.allocate() for _ in range(3)) == [0, 1, 2]
    assert (pool.num_used, pool.num_available) == (3, 0)
    with pytest.raises(IntegrityError, match="all 3 KV blocks"):
        pool.allocate()


def test_last_owner_frees() -> None:
    pool = BlockPool(1)
    block = pool.allocate()
    pool.acquire(block)
    pool.release(block)
    assert pool.num_available == 0
    pool.release(block)
    assert pool.num_free == 1
    with pytest.raises(IntegrityError, match="more often"):
        pool.release(block)


def test_content_outlives_its_owner() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.publish(block, b"k")
    pool.release(block)
    assert (pool.num_cached, pool.num_free, pool.lookup(b"k")) == (1, 1, block)
    pool.acquire(block)
    assert (pool.num_cached, pool.num_used, pool.lookup(b"k")) == (0, 1, block)


def test_blocks_without_content_go_first_then_the_least_recently_used() -> None:
    pool = BlockPool(4)
    a, b, c, d = (pool.allocate() for _ in range(4))
    for block, key in ((a, b"a"), (b, b"b"), (c, b"c")):
        pool.publish(block, key)
    pool.release_all([b, a, c, d])
    pool.acquire(b)
    pool.release(b)
    assert [pool.allocate() for _ in range(4)] == [d, a, c, b]
    assert [pool.lookup(key) for key in (b"a", b"b", b"c")] == [None, None, None]


def test_first_block_with_a_content_stays_the_one_found() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, b"k")
    pool.publish(second, b"k")
    assert pool.lookup(b"k") == first
    pool.release_all([second, first])
    assert (pool.num_free, pool.num_cached) == (1, 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool.ref_counts.__setitem__(0, 0),
        lambda pool: pool.ref_counts.__setitem__(1, 1),
        lambda pool: pool._next.__setitem__(1, 1),
        lambda pool: pool._by_key.clear(),
        lambda pool: pool._keys.__setitem__(2, b"x"),
    ],
)
def test_damage_is_found(damage: object) -> None:
    pool = BlockPool(4)
    pool.publish(pool.allocate(), b"k")
    pool.check_invariants()
    damage(pool)  # type: ignore[operator]
    with pytest.raises(IntegrityError):
        pool.check_invariants()


class PoolAgainstModel(RuleBasedStateMachine):
    """The model: owners a block, keys a block, and plain lists in the order of reuse."""

    @initialize(size=st.integers(1, 8))
    def begin(self, size: int) -> None:
        self.pool = BlockPool(size)
        self.owners = dict.fromkeys(range(size), 0)
        self.keys: dict[int, bytes] = {}
        self.empty = list(range(size))
        self.cached: list[int] = []

    @precondition(lambda self: self.empty or self.cached)
    @rule()
    def allocate(self) -> None:
        expected = (self.empty or self.cached).pop(0)
        self.keys.pop(expected, None)
        self.owners[expected] = 1
        assert self.pool.allocate() == expected

    @rule(key=st.binary(min_size=1, max_size=1).filter(lambda key: key < b"\x08"))
    def find_and_acquire(self, key: bytes) -> None:
        block = self.pool.lookup(key)
        assert block == next((b for b, k in self.keys.items() if k == key), None)
        if block is not None:
            self.pool.acquire(block)
            self.owners[block] += 1
            if block in self.cached:
                self.cached.remove(block)

    @rule(which=st.integers(0, 7))
    def release(self, which: int) -> None:
        if self.owners.get(which):
            self.pool.release(which)
            self.owners[which] -= 1
            if not self.owners[which]:
                if which in self.keys:
                    self.cached.append(which)
                else:
                    self.empty.insert(0, which)

    @rule(which=st.integers(0, 7), key=st.binary(min_size=1, max_size=1).filter(lambda key: key < b"\x08"))
    def publish(self, which: int, key: bytes) -> None:
        if self.owners.get(which):
            self.pool.publish(which, key)
            if which not in self.keys and key not in self.keys.values():
                self.keys[which] = key

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_invariants()
        assert self.pool.ref_counts == list(self.owners.values())
        assert (self.pool.num_free, self.pool.num_cached) == (len(self.empty), len(self.cached))
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_used == self.pool.num_blocks


PoolAgainstModel.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestPoolAgainstModel = PoolAgainstModel.TestCase
