"""The kernel's counter of kills for want of memory."""

from __future__ import annotations

from pathlib import Path

from octavo.observe.oom import oom_kills


def test_the_counter(tmp_path: Path) -> None:
    file = tmp_path / "vmstat"
    assert oom_kills(file) is None
    file.write_text("nr_free_pages 5\noom_kill 7\noom_kill_other 9\n")
    assert oom_kills(file) == 7
    file.write_text("nr_free_pages 5\n")
    assert oom_kills(file) is None
