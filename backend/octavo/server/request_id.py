"""Every answer carries `x-request-id`: the client's own, or a new one."""

from __future__ import annotations

import re
import uuid
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER: Final = b"x-request-id"
SCOPE_KEY: Final = "octavo.request_id"
"""Where later parts of the app find a request's id in its ASGI scope."""
_USABLE: Final = re.compile(rb"[!-~]{1,128}")


class RequestIds:
    """ASGI middleware. An id that is too long or not plain ASCII is replaced: it goes into headers and logs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == HEADER), b"")
        request_id = given if _USABLE.fullmatch(given) else uuid.uuid4().hex.encode()

        scope[SCOPE_KEY] = request_id.decode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (HEADER, request_id)]}
            await send(message)

        await self._app(scope, receive, send_with_id)
