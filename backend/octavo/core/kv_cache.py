"""KVCache: block tables on demand, prefix reuse, forks that copy on write. Knows blocks, not bytes."""

from __future__ import annotations

from typing import NamedTuple

from octavo.core.block_pool import BlockPool
from octavo.core.entry import Entry
from octavo.core.prefix_cache import block_key, salt_parts


class BlockCopy(NamedTuple):
    """Place `place` of a block table moved from block `source`, still owned by others, to `destination`."""

    place: int
    source: int
    destination: int


class KVCache:
    """Gives each sequence the blocks its tokens need.

    Args:
        num_blocks: blocks in the cache.
        block_size: tokens in a block.
        enable_prefix_caching: whether full blocks can be found by the tokens they hold.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._held: dict[int, int] = {}

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def find_prefix(self, entry: Entry) -> list[int]:
        """Blocks that already hold the sequence's first tokens; changes no ownership.

        The last known token is never among them: it must be computed for its logits. Nor are prompt positions whose
        logprobs have still to be reported.
        """
        sequence = entry.sequence
        limit = sequence.num_tokens - 1
        if entry.prompt_logprobs is not None and entry.reported < sequence.num_prompt_tokens - 1:
            limit = min(limit, entry.reported)
        if not self.enable_prefix_caching:
            return []
        found: list[int] = []
        for index in range(limit // self.block_size):
            block = self.pool.lookup(self._key(entry, index))
            if block is None:
                break
            found.append(block)
        return found

    def num_unowned(self, blocks: list[int]) -> int:
        """How many of `blocks` nobody owns: taking them makes that many unavailable."""
        counts = self.pool.ref_counts
        return sum(counts[block] == 0 for block in blocks)

    def attach(self, entry: Entry, prefix: list[int]) -> None:
        """Starts a block table with blocks that `find_prefix` found; their tokens count as computed."""
        for block in prefix:
            self.pool.acquire(block)
        entry.sequence.block_ids.extend(prefix)
        entry.sequence.num_computed_tokens = len(prefix) * self.block_size

    def blocks_missing(self, entry: Entry, end: int) -> int:
        """Blocks to allocate before tokens from num_computed_tokens to `end` can be written."""
        copies = self.must_copy(entry)
        return max(0, self.blocks_for(end) - len(entry.sequence.block_ids)) + copies

    def must_copy(self, entry: Entry) -> bool:
        """Whether the block of the next token to write belongs to others too."""
        sequence = entry.sequence
        index = sequence.num_computed_tokens // self.block_size
        if index >= len(sequence.block_ids):
            return False
        block = sequence.block_ids[index]
        return self.pool.ref_counts[block] - self._held.get(block, 0) > 1

    def grow(self, entry: Entry, end: int) -> list[int]:
        """Extends the block table to hold `end` tokens; the blocks appended."""
        table = entry.sequence.block_ids
        added = [self.pool.allocate() for _ in range(self.blocks_for(end) - len(table))]
        table.extend(added)
        return added

    def copy_on_write(self, entry: Entry) -> BlockCopy:
        """Gives the sequence its own block for its next token.

        The copy keeps a reference to its source until `end_copy`, so that the source cannot become another copy's
        destination within one plan, whatever the order in which copies are carried out.
        """
        sequence = entry.sequence
        place = sequence.num_computed_tokens // self.block_size
        source = sequence.block_ids[place]
        destination = self.pool.allocate()
        sequence.block_ids[place] = destination
        self._held[source] = self._held.get(source, 0) + 1
        return BlockCopy(place, source, destination)

    def end_copy(self, copy: BlockCopy) -> None:
        """The copy is planned for good, or dropped: lets its source go."""
        self._held[copy.source] -= 1
        if not self._held[copy.source]:
            del self._held[copy.source]
        self.pool.release(copy.source)

    def advance(self, entry: Entry, end: int) -> None:
        """The KV of tokens up to `end` is computed: blocks that became full can be found from now on."""
        sequence = entry.sequence
        first = sequence.num_computed_tokens // self.block_size
        sequence.num_computed_tokens = end
        if self.enable_prefix_caching:
            for index in range(first, end // self.block_size):
                self.pool.publish(sequence.block_ids[index], self._key(entry, index))

    def fork(self, parent: Entry, child: Entry) -> None:
        """The child shares all of its parent's blocks."""
        child.sequence.block_ids = list(parent.sequence.block_ids)
        child.sequence.num_computed_tokens = parent.sequence.num_computed_tokens
        child.keys = list(parent.keys)
        for block in child.sequence.block_ids:
            self.pool.acquire(block)

    def release(self, entry: Entry) -> None:
        """The sequence owns nothing afterwards. Its tail is forgotten before its head, which more requests share."""
        sequence = entry.sequence
        self.pool.release_all(reversed(sequence.block_ids))
        sequence.block_ids = []
        sequence.num_computed_tokens = 0

    def num_shared(self, entry: Entry) -> int:
        """Leading blocks of its table that others own too."""
        counts = self.pool.ref_counts
        shared = 0
        for block in entry.sequence.block_ids:
            if counts[block] == 1:
                break
            shared += 1
        return shared

    def empty_slots(self, entries: list[Entry]) -> int:
        """Token slots in the entries' blocks that hold no token; a shared block counts once."""
        counts, size = self.pool.ref_counts, self.block_size
        empty = 0
        seen: set[int] = set()
        for entry in entries:
            sequence = entry.sequence
            table = sequence.block_ids
            spare = len(table) * size - sequence.num_computed_tokens
            if spare and counts[table[-1]] > 1:
                if table[-1] in seen:
                    continue
                seen.add(table[-1])
            empty += spare
        return empty

    def _key(self, entry: Entry, index: int) -> bytes:
        keys, size = entry.keys, self.block_size
        while len(keys) <= index:
            start = len(keys) * size
            tokens = entry.sequence.token_ids[start : start + size]
            if keys:
                keys.append(block_key(tokens, keys[-1]))
            else:
                keys.append(block_key(tokens, None, salt_parts(entry.sequence.cache_salt)))
        return keys[index]
