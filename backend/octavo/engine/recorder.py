"""FlightRecorder: the last steps of a core, in memory that front and core share, so that it outlives the core."""

from __future__ import annotations

import mmap
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, Self

import numpy as np

from octavo.core.step import StepPlan

NUM_STEPS = 256
MAX_ROWS = 64
"""Rows kept of a step; of larger batches the rest is only counted."""

_ROW = np.dtype([("mark", "u4"), ("start", "u4"), ("tokens", "u4")])
_STEP = np.dtype(
    [
        ("step_id", "u8"),
        ("begin", "f8"),
        ("num_rows", "u4"),
        ("num_tokens", "u4"),
        ("plan_ms", "f4"),
        ("execute_ms", "f4"),
        ("update_ms", "f4"),
        ("kv_usage", "f4"),
        ("num_waiting", "u4"),
        ("ended", "u4"),
        ("rows", _ROW, MAX_ROWS),
    ]
)
# The same bytes again: numpy reads them at leisure, but takes 50 microseconds to write what struct writes in 10.
_BEGIN = struct.Struct("<QdIIffffII")
_END = struct.Struct("<fffII")
_END_OFFSET = _BEGIN.size - _END.size


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds that a step spent planning, executing and taking in what came out."""

    plan: float
    execute: float
    update: float


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """`mark` stands for a request, as `pulse.mark_of` makes it; `start` is its first position in the step."""

    mark: int
    start: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """
    Attributes:
        begin: seconds on the monotonic clock.
        times: of a step that never ended, those known.
        ended: False for the step in which the core is, or died.
        rows: the first MAX_ROWS of num_rows.
    """

    step_id: int
    begin: float
    times: StepTimes
    ended: bool
    num_rows: int
    num_tokens: int
    num_waiting: int
    kv_usage: float
    rows: tuple[RecordedRow, ...]


class FlightRecorder:
    """A ring of NUM_STEPS records. The core writes, the front reads; a record being overwritten may be read torn.

    A file without a name backs it, as a Pulse.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._page = mmap.mmap(file.fileno(), 0)
        self._place = -1

    @classmethod
    def create(cls) -> Self:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the recorder
        file.truncate(_STEP.itemsize * NUM_STEPS)
        return cls(file)

    @classmethod
    def attach(cls, descriptor: int) -> Self:
        """The same memory in another process, by an inherited file descriptor."""
        return cls(open(descriptor, "r+b"))

    def fileno(self) -> int:
        return self._file.fileno()

    def begin(self, plan: StepPlan, marks: Sequence[int], now: float, plan_ms: float) -> None:
        """A step begins.

        Args:
            marks: of the plan's rows, in their order.
        """
        self._place = (self._place + 1) % NUM_STEPS
        offset = self._place * _STEP.itemsize
        values: list[int] = []
        for row, mark in zip(plan.rows[:MAX_ROWS], marks, strict=False):
            values += (mark, row.start, row.num_tokens)
        struct.pack_into(f"<{len(values)}I", self._page, offset + _BEGIN.size, *values)
        _BEGIN.pack_into(self._page, offset, plan.step_id, now, len(plan.rows), plan.num_tokens, plan_ms, 0, 0, 0, 0, 0)

    def end(self, times: StepTimes, num_waiting: int, kv_usage: float) -> None:
        """The step has ended."""
        offset = self._place * _STEP.itemsize + _END_OFFSET
        _END.pack_into(self._page, offset, times.execute, times.update, kv_usage, num_waiting, 1)

    def read(self, count: int = NUM_STEPS) -> list[RecordedStep]:
        """The last `count` steps, oldest first."""
        steps = np.frombuffer(bytes(self._page), _STEP)
        steps = steps[steps["step_id"] > 0]
        return [_recorded(step) for step in steps[np.argsort(steps["step_id"])][-count:]]

    def close(self) -> None:
        self._page.close()
        self._file.close()


def _recorded(step: Any) -> RecordedStep:
    return RecordedStep(
        step_id=int(step["step_id"]),
        begin=float(step["begin"]),
        times=StepTimes(
            *(round(float(step[name]), 3) for name in ("plan_ms", "execute_ms", "update_ms")),
        ),
        ended=bool(step["ended"]),
        num_rows=int(step["num_rows"]),
        num_tokens=int(step["num_tokens"]),
        num_waiting=int(step["num_waiting"]),
        kv_usage=round(float(step["kv_usage"]), 4),
        rows=tuple(RecordedRow(*map(int, row)) for row in step["rows"][: min(int(step["num_rows"]), MAX_ROWS)]),
    )
