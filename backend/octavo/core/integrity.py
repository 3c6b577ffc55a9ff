"""The error of a broken invariant: a fault of octavo itself, never of a request."""

from __future__ import annotations


class IntegrityError(RuntimeError):
    """Blocks, slots or queues contradict each other; the core that finds this cannot be trusted any more."""
