"""Guard: a process that ends a stub whose tritonserver has died.

A stub that sends a response waits for the server's acknowledgement, and holds the interpreter's lock while it waits.
If the server dies in that moment, no thread of Python's runs in the stub again, and Triton's own end of it hangs too:
stub, engine and shared memory would stay for ever. So whoever looks after them must be a process of its own.

Run as `python -m octavo_adapters.triton.guard SERVER`, SERVER being the server's process id, as a child of the stub. It
ends when its standard input closes, that is when the stub ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

logger = logging.getLogger("octavo.triton")

GRACE_SECONDS = 5.0
"""A stub that nothing holds up has ended by itself a second after its server."""

_SHARED_MEMORY = "/dev/shm/"


class Guard:
    """Started by the stub it looks after, whose parent is the server."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Does without, and says so, where the system has no pidfd_open (Linux before 5.3)."""
        server = os.getppid()
        try:
            os.close(os.pidfd_open(server))
        except OSError as error:
            logger.warning("if tritonserver is killed, this engine may outlive it: %s", error)
            return
        command = [sys.executable, "-m", "octavo_adapters.triton.guard", str(server)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def stop(self) -> None:
        """Ends it, and waits for its end. Does nothing if it was not started."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()


def watch(server: int, stub: int, stdin: int) -> bool:
    """Waits for the end of `server` or of `stub`; whether the stub had to be killed.

    Args:
        server, stub: process ids.
        stdin: a descriptor that hangs up when the stub ends or needs no guard any more.
    """
    try:
        stub_fd = os.pidfd_open(stub)
    except ProcessLookupError:
        return False
    try:
        server_fd = os.pidfd_open(server)
    except ProcessLookupError:
        pass
    else:
        poll = select.poll()
        poll.register(stdin, select.POLLIN)
        poll.register(server_fd, select.POLLIN)
        if any(descriptor == stdin for descriptor, _ in poll.poll()):
            return False
    waiting = select.poll()
    waiting.register(stub_fd, select.POLLIN)
    if waiting.poll(GRACE_SECONDS * 1000):
        return False
    regions = _regions(stub)
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(stub_fd, signal.SIGKILL)
    for region in regions:
        region.unlink(missing_ok=True)
    return True


def _regions(process: int) -> set[Path]:
    """Files in shared memory that a process has open: those of a stub are its own and its server's."""
    found = set()
    # It may be ending while it is looked at.
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            target = descriptor.readlink()
            if str(target).startswith(_SHARED_MEMORY) and target.exists():
                found.add(target)
    return found


def main() -> None:
    # A Ctrl-C reaches the whole process group; when to end is the stub's to say.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    stub = os.getppid()
    if watch(int(sys.argv[1]), stub, sys.stdin.fileno()):
        sys.stderr.write(f"octavo: tritonserver is gone, and its stub {stub} did not end: killed\n")


if __name__ == "__main__":
    main()
