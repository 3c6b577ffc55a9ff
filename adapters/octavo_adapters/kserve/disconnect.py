"""WhileConnected: KServe's inference handlers do not notice that their client is gone; this ends them."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.merge import while_connected

_INFERENCE = re.compile(r"/v1/models/[^/]+:predict|/v2/models/[^/]+(/versions/[^/]+)?/infer")


class WhileConnected:
    """ASGI middleware for the routes of KServe's own that run a model.

    The body is read first, for what comes after it is the news that the client has left.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _INFERENCE.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        messages: list[Message] = []
        while not messages or messages[-1].get("more_body"):
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            messages.append(message)
        waiting = iter(messages)

        async def replayed() -> Message:
            return next(waiting, {"type": "http.disconnect"})

        async def answered() -> None:
            await self._app(scope, replayed, send)

        await while_connected(receive, answered())
