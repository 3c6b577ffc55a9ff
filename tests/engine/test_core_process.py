"""The core's environment."""

from __future__ import annotations

from octavo.engine.core_process import core_environment


def test_waiting_threads_sleep_soon_unless_told_otherwise() -> None:
    """By libgomp's default they spin for milliseconds: beside one busy process, a server of two threads all but stood
    still, since each spinning thread kept the core from the one it waited for."""
    assert core_environment({"HOME": "/h"}) == {"HOME": "/h", "GOMP_SPINCOUNT": "5000"}
    for chosen in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        assert core_environment(chosen) == chosen
