"""The guard, with plain processes for server and stub."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from octavo_adapters.triton import guard

REGION = Path(f"/dev/shm/octavo_test_guard_{os.getpid()}")
STUB = f"import sys; f = open({str(REGION)!r}, 'w'); print(flush=True); sys.stdin.read()"


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        try:
            assert one.stdout is not None
            one.stdout.readline()
            yield one
        finally:
            one.kill()


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    ours, theirs = os.pipe()
    yield ours, theirs
    os.close(ours)


def test_a_stub_that_hangs_is_killed_with_its_region(ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "GRACE_SECONDS", 0.3)
    with process(STUB) as stub, process("print(flush=True); input()") as server:
        assert REGION.exists()
        server.kill()
        assert guard.watch(server.pid, stub.pid, ends[0])
        assert stub.wait(60) == -9
        assert not REGION.exists()
    os.close(ends[1])


def test_a_stub_that_ends_by_itself_is_left_alone(ends: tuple[int, int]) -> None:
    with process(STUB) as stub, process("print(flush=True); input()") as server:
        server.kill()
        stub.communicate(b"")
        assert stub.returncode == 0
        assert not guard.watch(server.pid, stub.pid, ends[0])
    assert REGION.exists()
    REGION.unlink()
    os.close(ends[1])


def test_it_ends_with_its_stub(ends: tuple[int, int]) -> None:
    with process(STUB) as stub, process("print(flush=True); input()") as server:
        os.close(ends[1])
        assert not guard.watch(server.pid, stub.pid, ends[0])
        assert (stub.poll(), server.poll()) == (None, None)
    REGION.unlink()


def test_the_parent_is_watched_until_it_is_told_to_stop() -> None:
    one = guard.Guard()
    one.start()
    started = one._process
    assert started is not None
    assert started.args[-1] == str(os.getppid())  # type: ignore[index]
    assert started.poll() is None
    one.stop()
    assert started.returncode == 0
