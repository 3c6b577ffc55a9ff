"""BlockPool: who owns which KV block, and which content of free blocks can still be reused.

A block is used (owned by reference count), cached (free, but its content is known by a key) or free. Free and cached
blocks form one intrusive doubly linked list, blocks without content first, then the cached ones, least recently used
first; so the next block to hand out is always the head. Every operation is O(1).
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.integrity import IntegrityError


class BlockPool:
    """Blocks 0 .. num_blocks-1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        """Owners of each block; for others to read."""
        self._keys: list[bytes | None] = [None] * num_blocks
        self._by_key: dict[bytes, int] = {}
        self._num_available = num_blocks
        self._num_cached = 0
        # The entry past the last block is the list's anchor: its successor is the head.
        self._anchor = num_blocks
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._prev: list[int] = [num_blocks, *range(num_blocks)]

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out: free and cached ones."""
        return self._num_available

    @property
    def num_free(self) -> int:
        """Blocks without owner and without content."""
        return self._num_available - self._num_cached

    @property
    def num_cached(self) -> int:
        """Blocks without owner whose content a lookup still finds."""
        return self._num_cached

    @property
    def num_used(self) -> int:
        return self.num_blocks - self._num_available

    def allocate(self) -> int:
        """An empty block with one owner; forgets the least recently used content if no block is without.

        Raises:
            IntegrityError: no block is available; callers look at `num_available` first.
        """
        block = self._next[self._anchor]
        if block == self._anchor:
            raise IntegrityError(f"all {self.num_blocks} KV blocks are owned; none can be allocated")
        self._take(block)
        key = self._keys[block]
        if key is not None:
            del self._by_key[key]
            self._keys[block] = None
        self.ref_counts[block] = 1
        return block

    def acquire(self, block: int) -> None:
        """One more owner for a used or cached block."""
        if self.ref_counts[block] == 0:
            self._take(block)
        self.ref_counts[block] += 1

    def release(self, block: int) -> None:
        """One owner less. The last one's block becomes available, with its content if that has a key.

        Raises:
            IntegrityError: nobody owns the block.
        """
        count = self.ref_counts[block]
        if count == 0:
            raise IntegrityError(f"KV block {block} was released more often than acquired")
        self.ref_counts[block] = count - 1
        if count == 1:
            self._give_back(block)

    def release_all(self, blocks: Iterable[int]) -> None:
        """Releases in the order given: what comes first is forgotten first."""
        for block in blocks:
            self.release(block)

    def lookup(self, key: bytes) -> int | None:
        """The block that holds the content `key` stands for."""
        return self._by_key.get(key)

    def publish(self, block: int, key: bytes) -> None:
        """Lets lookups find an owned, full block. If another block already holds the same content, that one stays."""
        if self._keys[block] is None and key not in self._by_key:
            self._keys[block] = key
            self._by_key[key] = block

    def check_invariants(self) -> None:
        """Walks the whole pool.

        Raises:
            IntegrityError: the list, the counts and the keys contradict each other.
        """
        listed: list[int] = []
        block, previous = self._next[self._anchor], self._anchor
        while block != self._anchor:
            if self._prev[block] != previous or self.ref_counts[block] != 0 or len(listed) >= self.num_blocks:
                raise IntegrityError(f"the list of available KV blocks is broken at block {block}")
            listed.append(block)
            block, previous = self._next[block], block
        unowned = sum(count == 0 for count in self.ref_counts)
        if not len(listed) == unowned == self._num_available:
            raise IntegrityError(
                f"{unowned} KV blocks have no owner, {len(listed)} listed, {self._num_available} counted"
            )
        cached = [self._keys[block] is not None for block in listed]
        if sum(cached) != self._num_cached or cached != sorted(cached):
            raise IntegrityError(f"{sum(cached)} cached KV blocks listed, {self._num_cached} counted, or out of order")
        keyed = {key: block for block, key in enumerate(self._keys) if key is not None}
        if keyed != self._by_key:
            raise IntegrityError("the prefix cache's keys do not match the blocks")
        if min(self.ref_counts) < 0:
            raise IntegrityError("a KV block has a negative reference count")

    def _take(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self._num_available -= 1
        if self._keys[block] is not None:
            self._num_cached -= 1

    def _give_back(self, block: int) -> None:
        if self._keys[block] is None:
            before, after = self._anchor, self._next[self._anchor]
        else:
            before, after = self._prev[self._anchor], self._anchor
            self._num_cached += 1
        self._next[before] = self._prev[after] = block
        self._prev[block], self._next[block] = before, after
        self._num_available += 1
