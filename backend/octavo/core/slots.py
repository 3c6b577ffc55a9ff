"""SlotPool: rows of the runner's persistent batch."""

from __future__ import annotations


class SlotPool:
    """Slots 0 .. num_slots-1. A slot the runner knows of is reusable only once a plan has said that it is free."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._reserved = 0
        self._unannounced: list[int] = []

    @property
    def num_available(self) -> int:
        """Slots that are neither taken, nor reserved, nor still to be announced as free."""
        return len(self._free) - self._reserved

    @property
    def num_reserved(self) -> int:
        return self._reserved

    @property
    def idle(self) -> list[int]:
        """All slots that no sequence holds."""
        return [*self._free, *self._unannounced]

    def take(self) -> int:
        return self._free.pop()

    def reserve(self, count: int) -> None:
        """Keeps `count` slots for sequences still to come; a negative count lets them go."""
        self._reserved += count

    def give_back(self, slot: int, announce: bool) -> None:
        """`announce`: the runner knows the slot, so that it becomes available with the next `announcements`."""
        (self._unannounced if announce else self._free).append(slot)

    def announcements(self) -> list[int]:
        """Slots freed since the last call; the caller tells the runner, and they are available from now on."""
        freed, self._unannounced = self._unannounced, []
        self._free.extend(freed)
        return freed
