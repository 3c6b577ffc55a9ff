"""WaitingQueue: sequences without a slot, best standing first, and how often each was passed over."""

from __future__ import annotations

from bisect import bisect_left, insort

from octavo.core.entry import Entry, Standing

MAX_OVERTAKEN = 16
"""Sequences that may be admitted past a blocked one before it blocks those behind it."""
MAX_OVERTAKEN_SECONDS = 5.0
"""Or the time for which it may be passed, from the first time on."""


def _standing(entry: Entry) -> Standing:
    return entry.standing


class WaitingQueue:
    """A blocked sequence (no slots, no blocks, too many partial prefills) may be passed by later ones that fit, but
    only so often and for so long; then those behind it wait until it fits, so that it is not passed for ever."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def first(self, count: int) -> list[Entry]:
        """The `count` best, or as many as there are."""
        return self._entries[:count]

    def add(self, entry: Entry) -> None:
        entry.times_overtaken = 0
        insort(self._entries, entry, key=_standing)

    def remove(self, entry: Entry) -> None:
        del self._entries[bisect_left(self._entries, entry.standing, key=_standing)]

    def overtake(self, passed: list[Entry], now: float) -> None:
        """One sequence was admitted that stands behind those of `passed`."""
        for entry in passed:
            if entry.times_overtaken == 0:
                entry.overtaken_since = now
            entry.times_overtaken += 1

    def may_be_passed(self, entry: Entry, now: float) -> bool:
        if entry.times_overtaken == 0:
            return True
        return entry.times_overtaken < MAX_OVERTAKEN and now - entry.overtaken_since < MAX_OVERTAKEN_SECONDS
