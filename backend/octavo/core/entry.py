"""Entry: a sequence, and what planning keeps beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.core.request import Sequence


class Standing(NamedTuple):
    """The order in which sequences are served; smaller is better. `serial` counts the requests as they came."""

    priority: int
    arrival_time: float
    serial: int
    sequence_index: int


@dataclass(slots=True, eq=False)
class Entry:
    """
    Attributes:
        endings: token ids that end the sequence -> the stop_reason to report for each.
        keys: prefix-cache keys of its first full blocks, as many as were needed so far.
        prompt_logprobs: top logprobs to report for each prompt token; None for none.
        reported: prompt positions, from 0, whose logprobs have been reported.
        announced: the runner knows the slot; it must hear when it is freed.
        dropped: indices of an n-sequence request that were aborted before its prompt was computed.
        times_overtaken: sequences admitted past this one while it waited, the first at `overtaken_since`.
    """

    sequence: Sequence
    standing: Standing
    endings: dict[int, int | None]
    min_tokens: int
    prompt_logprobs: int | None
    keys: list[bytes] = field(default_factory=list)
    reported: int = 0
    announced: bool = False
    dropped: set[int] = field(default_factory=set)
    times_overtaken: int = 0
    overtaken_since: float = 0.0

    @property
    def live_indices(self) -> list[int]:
        """Indices of the request this entry still stands for: all n until its prompt is computed, then one."""
        first = self.sequence.index
        return [i for i in range(first, first + self.sequence.num_sequences) if i not in self.dropped]
