"""Lines of a file or of stdin, read beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from typing import BinaryIO

_READ_AHEAD = 64


async def read_lines(stream: BinaryIO) -> AsyncIterator[bytes]:
    """Yields the stream's lines, a few read ahead. Raises the OSError that reading met.

    The thread is a daemon rather than the loop's executor: a read that waits for a terminal must not hold up the end.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError | None] = asyncio.Queue(_READ_AHEAD)

    def put(item: bytes | OSError | None) -> None:
        asyncio.run_coroutine_threadsafe(queue.put(item), loop).result()

    def read() -> None:
        try:
            try:
                for line in stream:
                    put(line)
                put(None)
            except OSError as error:
                put(error)
        except (RuntimeError, CancelledError):
            return  # the event loop has ended: nobody wants more

    threading.Thread(target=read, name="octavo-lines", daemon=True).start()
    while (item := await queue.get()) is not None:
        if isinstance(item, OSError):
            raise item
        yield item
