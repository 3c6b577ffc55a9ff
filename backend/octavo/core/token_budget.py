"""TokenBudget: tokens of a step, fewer for a while after the device ran out of memory."""

from __future__ import annotations

PATIENCE = 64
"""Steps that must succeed before the budget is doubled again."""


class TokenBudget:
    """
    Args:
        limit: tokens of a step when all is well.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_good = 0
        self.tokens = limit

    def shrink(self, num_tokens: int) -> bool:
        """A step of `num_tokens` was too much: half of it is the most from now on. False if there is no half."""
        if num_tokens < 2:
            return False
        self._num_good = 0
        self.tokens = num_tokens // 2
        return True

    def succeed(self) -> None:
        """A step went well."""
        if self.tokens == self._limit:
            return
        self._num_good += 1
        if self._num_good == PATIENCE:
            self._num_good = 0
            self.tokens = min(2 * self.tokens, self._limit)
