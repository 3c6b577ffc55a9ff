"""Lines of a file or of stdin, read beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import BinaryIO

_READ_AHEAD = 64


async def read_lines(stream: BinaryIO) -> AsyncGenerator[bytes, None]:
    """Yields the stream's lines, a few read ahead. Raises the OSError that reading met.

    The thread is a daemon rather than the loop's executor: a read that waits for a terminal must not hold up the end.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError | None] = asyncio.Queue()
    room = threading.Semaphore(_READ_AHEAD)
    closed = threading.Event()

    def put(item: bytes | OSError | None) -> bool:
        room.acquire()
        if closed.is_set():
            return False
        try:
            loop.call_soon_threadsafe(queue.put_nowait, item)
        except RuntimeError:
            return False  # the event loop has ended
        return True

    def read() -> None:
        try:
            for line in stream:
                if not put(line):
                    return
            put(None)
        except OSError as error:
            put(error)

    threading.Thread(target=read, name="octavo-lines", daemon=True).start()
    try:
        while (item := await queue.get()) is not None:
            room.release()
            if isinstance(item, OSError):
                raise item
            yield item
    finally:
        closed.set()
        room.release()
