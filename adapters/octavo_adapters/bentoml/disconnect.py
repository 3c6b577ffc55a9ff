"""while_there: a stream that ends when its client goes, also before it has brought anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from starlette.requests import Request

T = TypeVar("T")


async def while_there(request: Request, stream: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The items of `stream`. Until the first has come, nobody else listens for the client's leaving: BentoML waits for
    it before it begins to answer.
    """
    async with aclosing(stream):
        first = asyncio.ensure_future(anext(stream))
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait((first, gone), return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                return
            item = first.result()
        except StopAsyncIteration:
            return
        finally:
            for task in (first, gone):
                task.cancel()
            await asyncio.gather(first, gone, return_exceptions=True)
        yield item
        async for item in stream:
            yield item


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
