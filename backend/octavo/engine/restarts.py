"""When a core that died is started again, and which request is to blame."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class RestartBudget:
    """At most `max_restarts` in `window_seconds`: the first at once, then after pauses that double."""

    def __init__(self, max_restarts: int, window_seconds: float) -> None:
        self._max_restarts = max_restarts
        self._window_seconds = window_seconds
        self._restarts: deque[float] = deque()

    def take(self, now: float) -> float | None:
        """Seconds to wait before a restart that is asked for `now`; None if there have been too many."""
        while self._restarts and now - self._restarts[0] >= self._window_seconds:
            self._restarts.popleft()
        if len(self._restarts) >= self._max_restarts:
            return None
        self._restarts.append(now)
        recent = len(self._restarts) - 1
        return 0.0 if recent == 0 else min(_FIRST_PAUSE * 2.0 ** (recent - 1), _LONGEST_PAUSE)


class Suspicion:
    """Finds the request that kills the core.

    One that was in the batch at two crashes in a row, and got no token in between, is a suspect. Suspects are tried one
    at a time, with no request beside them that was not tried before; one that gets a token is cleared, and one during
    whose trial the core dies again is guilty.
    """

    def __init__(self) -> None:
        self._last_batch: set[str] = set()
        self._suspects: list[str] = []
        self.on_trial: str | None = None

    def crashed(self, batch: Iterable[str]) -> str | None:
        """Takes note of a crash; the guilty request, if there is one."""
        batch = set(batch)
        guilty = self.on_trial if self.on_trial in batch else None
        self.on_trial = None
        if guilty is not None:
            self.clear(guilty)
            batch.discard(guilty)
            self._last_batch = set()
            return guilty
        self._suspects = sorted({*self._suspects, *(batch & self._last_batch)})
        self._last_batch = batch
        return None

    def next_trial(self) -> str | None:
        """The suspect to be tried now; None if there is none left, and everyone may run."""
        if self.on_trial is None and self._suspects:
            self.on_trial = self._suspects.pop(0)
        return self.on_trial

    def clear(self, request_id: str) -> bool:
        """The request got on, or is over: nothing speaks against it. Whether that ends a trial."""
        self._last_batch.discard(request_id)
        if request_id in self._suspects:
            self._suspects.remove(request_id)
        if self.on_trial == request_id:
            self.on_trial = None
            return True
        return False
