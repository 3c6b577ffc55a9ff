"""Backlog: how much may wait, and how long the wait is."""

from __future__ import annotations

import math

from octavo.errors import EngineOverloadedError

_LONGEST_WAIT = 60
# Weight of the last interval in the running mean of the time between two requests' ends.
_SMOOTHING = 0.1


class Backlog:
    """Counts what is in flight, and refuses what would wait too long or fill the memory.

    Args:
        max_num_seqs: sequences that run at once; those do not wait.
        max_requests: sequences (requests x n) that may be in flight beyond them.
        max_tokens: prompt tokens, together, of requests without a first token.
    """

    def __init__(self, max_num_seqs: int, max_requests: int, max_tokens: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._num_sequences = 0
        self._num_tokens = 0
        self._interval = 0.0
        self._last_end: float | None = None

    @property
    def num_sequences(self) -> int:
        """Sequences in flight, running or not."""
        return self._num_sequences

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of requests without a first token."""
        return self._num_tokens

    def check(self, num_sequences: int = 1, num_tokens: int = 0) -> None:
        """Raises EngineOverloadedError if there is no room for a request of that size.

        A prompt longer than the whole bound is taken when no other waits: it would never find more room.
        """
        queued = self._num_sequences - self._max_num_seqs
        if queued + num_sequences > self._max_requests:
            raise EngineOverloadedError(
                f"the engine is overloaded: {max(queued, 0)} requests wait beyond the {self._max_num_seqs} that run at "
                f"once, and at most {self._max_requests} may (max_queued_requests); try again later",
                self.retry_after(),
            )
        if self._num_tokens and self._num_tokens + num_tokens > self._max_tokens:
            raise EngineOverloadedError(
                f"the engine is overloaded: prompts of {self._num_tokens} tokens wait, this one has {num_tokens}, and "
                f"at most {self._max_tokens} may wait (max_queued_tokens); try again later",
                self.retry_after(),
            )

    def enter(self, num_sequences: int, num_tokens: int) -> None:
        self._num_sequences += num_sequences
        self._num_tokens += num_tokens

    def begin(self, num_tokens: int) -> None:
        """A request of `num_tokens` prompt tokens has its first token."""
        self._num_tokens -= num_tokens

    def leave(self, num_sequences: int, num_tokens: int, now: float) -> None:
        """A request is over.

        Args:
            num_tokens: of its prompt if it never had a token, else 0.
            now: seconds on a monotonic clock.
        """
        self._num_sequences -= num_sequences
        self._num_tokens -= num_tokens
        if self._last_end is not None:
            self._interval += _SMOOTHING * (now - self._last_end - self._interval)
        self._last_end = now

    def retry_after(self) -> int:
        """Seconds in which what waits now should have begun, from 1 to 60."""
        queued = max(self._num_sequences - self._max_num_seqs, 0)
        return min(max(math.ceil(queued * self._interval), 1), _LONGEST_WAIT)
