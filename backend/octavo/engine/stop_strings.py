"""StopStrings: finds where a text must end, and holds back what may be the beginning of an end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop string was completed; `text` is what may still be given out before the end."""

    text: str
    string: str


class StopStrings:
    """Scans a text that comes in pieces. The string that is completed first wins, the longest of those completed by
    the same character; so the result does not depend on how the text falls into pieces.

    Args:
        strings: none of them empty.
        include: whether the text given out ends with the stop string or before it.
    """

    __slots__ = ("_held", "_include", "_strings")

    def __init__(self, strings: Sequence[str], *, include: bool) -> None:
        self._strings = list(strings)
        self._include = include
        self._held = ""

    def push(self, text: str, *, armed: bool = True) -> str | Stop:
        """The text that is certainly before any stop string, or the end.

        Args:
            armed: False while the text may not end: a stop string that this piece completes is passed over.
        """
        pending = self._held + text
        first = self._first_completed(pending, len(self._held)) if armed else None
        if first is not None:
            end, start, string = first
            self._held = ""
            return Stop(pending[: end if self._include else start], string)
        keep = self._longest_beginning(pending)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def flush(self) -> str:
        """What was held back, once the text has ended otherwise."""
        held, self._held = self._held, ""
        return held

    def _first_completed(self, pending: str, seen: int) -> tuple[int, int, str] | None:
        """(end, start, string) of the stop string that is completed first after the `seen` characters."""
        first: tuple[int, int, str] | None = None
        for string in self._strings:
            start = pending.find(string, max(0, seen + 1 - len(string)))
            if start >= 0 and (first is None or (start + len(string), start) < first[:2]):
                first = (start + len(string), start, string)
        return first

    def _longest_beginning(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for string in self._strings:
            for length in range(min(len(string) - 1, len(text)), longest, -1):
                if text.endswith(string[:length]):
                    longest = length
                    break
        return longest
