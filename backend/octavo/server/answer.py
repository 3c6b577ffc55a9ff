"""The two ways to answer a generation: one JSON document, or a stream of events. Both end when the client goes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import Response
from starlette.types import Receive, Scope, Send

from octavo.server import sse
from octavo.server.errors import api_error
from octavo.server.merge import while_connected


class DocumentAnswer(Response):
    """Sends what `document()` comes to, as JSON. Its failure is raised before anything is sent."""

    media_type = "application/json"

    def __init__(self, document: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        super().__init__()
        self._document = document

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._respond(scope, receive, send))

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = msgspec.json.encode(await self._document())
        await Response(body, media_type=self.media_type)(scope, receive, send)


class StreamAnswer(Response):
    """Sends events as they come. A failure before the first event is raised, for it has a status of its own; a later
    one becomes an error event, and the stream ends without `[DONE]`.

    Each event is sent before the next is asked for: a client that reads slowly holds back its own request alone.
    """

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers=sse.HEADERS)
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._respond(scope, send))

    async def _respond(self, scope: Scope, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = await anext(events)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except Exception as error:  # noqa: BLE001 - the status is sent: the client learns of it in the stream
                await send(
                    {"type": "http.response.body", "body": sse.event(api_error(error, scope).body()), "more_body": True}
                )
        await send({"type": "http.response.body", "body": b"", "more_body": False})
