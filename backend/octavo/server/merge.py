"""Several streams as one, and work that ends when its client goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """(index of the stream, item) of all `streams` as they come. Closing it early closes every stream.

    At most one item a stream waits here: a slow reader holds the streams back, and what comes meanwhile is theirs to
    join. The first stream to fail fails the whole.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(maxsize=len(streams))
    pumps = [asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(streams)]
    running = len(pumps)
    try:
        while running:
            news = await queue.get()
            if news is None:
                running -= 1
            elif isinstance(news, BaseException):
                raise news
            else:
                yield news
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    index: int,
    stream: AsyncGenerator[T, None],
    queue: asyncio.Queue[tuple[int, T] | BaseException | None],
) -> None:
    end: BaseException | None = None
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((index, item))
    except Exception as error:  # noqa: BLE001 - raised again by the reader, in its own task
        end = error
    await queue.put(end)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work`, and cancels it as soon as the client disconnects. The request's body must have been read.

    A server tells of a disconnect through `receive` alone: sending to a client that left just does nothing.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        finished = working.done()
        for task in (working, watching):
            task.cancel()
        results = await asyncio.gather(working, watching, return_exceptions=True)
    if finished and isinstance(results[0], BaseException):
        raise results[0]


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
