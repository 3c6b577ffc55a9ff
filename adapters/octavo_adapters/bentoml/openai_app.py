"""OpenAIApp: octavo's own OpenAI app at a place in BentoML's, before its engine exists."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from octavo import AsyncEngine
from octavo.server.app import create_app
from octavo.server.config import ServerConfig


class OpenAIApp(Starlette):
    """BentoML mounts apps when a service's class is made; the engine is the worker's, and comes when that starts.

    Its paths are octavo's server's: /v1/..., /tokenize, /health, ... BentoML's own come first.
    """

    def __init__(self, config: ServerConfig) -> None:
        super().__init__()
        self._config = config
        self._app: Any = None

    def open(self, engine: AsyncEngine) -> None:
        """From now on requests go to `engine`. Raises ConfigError if the options are wrong."""
        self._app = create_app(engine, self._config)

    @property
    def routes(self) -> list[BaseRoute]:
        """What BentoML looks at to see whether a request belongs here."""
        return [] if self._app is None else list(self._app.routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._app is None:
            await JSONResponse({"error": {"message": "the engine is not there yet"}}, 503)(scope, receive, send)
        elif self._app is None:
            await super().__call__(scope, receive, send)
        else:
            await self._app(scope, receive, send)
