"""Pulse: a page of memory that front and core share, from which the front learns how the core is, even a dead one."""

from __future__ import annotations

import mmap
import struct
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Self

_HEADER = struct.Struct("<QQQ")  # steps finished, busy, requests in the batch
_MARK = struct.Struct("<I")


def mark_of(request_id: str) -> int:
    """What stands for a request in the page: 32 bits, so that a page has room for the largest batch."""
    return zlib.crc32(request_id.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Beat:
    """
    Attributes:
        steps: finished since the core's start.
        busy: a step was begun and has not ended.
        batch: marks of the requests in the step that was begun last.
    """

    steps: int
    busy: bool
    batch: frozenset[int]


class Pulse:
    """The core writes, the front reads. A file without a name backs it, so nothing is left behind, whoever dies.

    Args:
        file: of `size_for(max_num_seqs)` bytes.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._page = mmap.mmap(file.fileno(), 0)
        self._steps = 0

    @classmethod
    def create(cls, max_num_seqs: int) -> Self:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the pulse
        file.truncate(_HEADER.size + _MARK.size * max_num_seqs)
        return cls(file)

    @classmethod
    def attach(cls, descriptor: int) -> Self:
        """The same page in another process, by an inherited file descriptor."""
        return cls(open(descriptor, "r+b"))

    def fileno(self) -> int:
        return self._file.fileno()

    def begin(self, batch: Sequence[int]) -> None:
        """A step over the requests of these marks begins."""
        marks = struct.pack(f"<{len(batch)}I", *batch)
        # Counted last: a core that dies in here leaves an empty batch, not half of one.
        _HEADER.pack_into(self._page, 0, self._steps, 1, 0)
        self._page[_HEADER.size : _HEADER.size + len(marks)] = marks
        _HEADER.pack_into(self._page, 0, self._steps, 1, len(marks) // _MARK.size)

    def end(self) -> None:
        """The step has ended."""
        self._steps += 1
        _HEADER.pack_into(self._page, 0, self._steps, 0, 0)

    def read(self) -> Beat:
        steps, busy, count = _HEADER.unpack_from(self._page, 0)
        marks = self._page[_HEADER.size : _HEADER.size + count * _MARK.size]
        return Beat(steps, bool(busy), frozenset(mark for (mark,) in _MARK.iter_unpack(marks)))

    def close(self) -> None:
        self._page.close()
        self._file.close()
