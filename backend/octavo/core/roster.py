"""Roster: who runs, who waits, and the slots and blocks they hold. The one place where these change hands."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter

from octavo.core.entry import Entry, Standing
from octavo.core.integrity import IntegrityError
from octavo.core.kv_cache import KVCache
from octavo.core.request import Status
from octavo.core.scheduler_config import SchedulerConfig
from octavo.core.slots import SlotPool
from octavo.core.waiting_queue import WaitingQueue


def _standing(entry: Entry) -> Standing:
    return entry.standing


class Roster:
    """
    Attributes:
        running: entries with a slot, best standing first.
        waiting: entries without slot and blocks.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.running: list[Entry] = []
        self.waiting = WaitingQueue()
        self.slots = SlotPool(config.max_num_seqs)
        self.kv_cache = KVCache(config.num_blocks, config.block_size, config.enable_prefix_caching)

    def start(self, entry: Entry, prefix: list[int]) -> None:
        """From waiting to running, with the blocks found in the prefix cache and slots for all its forks."""
        sequence = entry.sequence
        self.waiting.remove(entry)
        self.slots.reserve(sequence.num_sequences - 1)
        self.kv_cache.attach(entry, prefix)
        self._run(entry)

    def join(self, parent: Entry, child: Entry) -> None:
        """A fork starts to run, in a slot its parent reserved, on its parent's blocks."""
        self.slots.reserve(-1)
        self.kv_cache.fork(parent, child)
        self._run(child)

    def preempt(self, entry: Entry) -> None:
        """From running to waiting; its blocks and slots are free, its output so far is kept."""
        self._stop(entry)
        entry.sequence.status = Status.PREEMPTED
        entry.sequence.num_preemptions += 1
        self.waiting.add(entry)

    def leave(self, entry: Entry) -> None:
        """The sequence is over and owns nothing."""
        if entry.sequence.status is Status.RUNNING:
            self._stop(entry)
        else:
            self.waiting.remove(entry)
        entry.sequence.status = Status.FINISHED

    def check_invariants(self) -> None:
        """
        Raises:
            IntegrityError: a block, a slot or a sequence is lost, doubled or in two places.
        """
        self.kv_cache.pool.check_invariants()
        owners = Counter(block for entry in self.running for block in entry.sequence.block_ids)
        if owners != {block: count for block, count in enumerate(self.kv_cache.pool.ref_counts) if count}:
            raise IntegrityError("the KV blocks' reference counts do not match the block tables")
        taken = [entry.sequence.slot for entry in self.running if entry.sequence.slot is not None]
        if sorted([*taken, *self.slots.idle]) != list(range(self.slots.num_slots)):
            raise IntegrityError(f"slots are lost or doubled: running {taken}, idle {self.slots.idle}")
        if self.slots.num_reserved != sum(entry.sequence.num_sequences - 1 for entry in self.running):
            raise IntegrityError("the slots reserved do not match the forks to come")
        for entry in self.running:
            sequence = entry.sequence
            held = len(sequence.block_ids) * self.kv_cache.block_size
            if sequence.status is not Status.RUNNING or not sequence.num_computed_tokens <= min(
                held, sequence.num_tokens - 1
            ):
                raise IntegrityError(f"running sequence {sequence.request_id}/{sequence.index} is inconsistent")
        for entry in self.waiting.first(len(self.waiting)):
            sequence = entry.sequence
            if sequence.block_ids or sequence.slot is not None or sequence.num_computed_tokens:
                raise IntegrityError(f"waiting sequence {sequence.request_id}/{sequence.index} owns something")

    def _run(self, entry: Entry) -> None:
        entry.sequence.slot = self.slots.take()
        entry.sequence.status = Status.RUNNING
        insort(self.running, entry, key=_standing)

    def _stop(self, entry: Entry) -> None:
        sequence = entry.sequence
        del self.running[bisect_left(self.running, entry.standing, key=_standing)]
        self.kv_cache.release(entry)
        if sequence.slot is not None:
            self.slots.give_back(sequence.slot, announce=entry.announced)
        self.slots.reserve(1 - sequence.num_sequences)
        sequence.slot = None
        entry.announced = False
