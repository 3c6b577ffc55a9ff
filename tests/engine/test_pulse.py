"""The page that front and core share."""

from __future__ import annotations

import os
import subprocess
import sys

from octavo.engine.pulse import Beat, Pulse, mark_of


def test_what_is_written_is_read() -> None:
    pulse = Pulse.create(3)
    assert pulse.read() == Beat(0, False, frozenset())
    pulse.begin([mark_of(name) for name in ("a", "ü", "b")])
    assert pulse.read() == Beat(0, True, frozenset({mark_of("a"), mark_of("ü"), mark_of("b")}))
    pulse.end()
    assert (pulse.read().steps, pulse.read().busy) == (1, False)
    pulse.begin([mark_of("c")])
    assert pulse.read() == Beat(1, True, frozenset({mark_of("c")}))
    pulse.close()


def test_a_dead_process_leaves_its_last_beat() -> None:
    pulse = Pulse.create(4)
    script = (
        "import os, sys; from octavo.engine.pulse import Pulse; pulse = Pulse.attach(int(sys.argv[1])); "
        "pulse.begin([1]); pulse.end(); pulse.begin([2, 3]); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(pulse.fileno())], pass_fds=(pulse.fileno(),), check=False)
    assert pulse.read() == Beat(1, True, frozenset({2, 3}))
    descriptor = pulse.fileno()
    assert not os.path.exists(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH110, PTH115 - a link to nothing
    pulse.close()
