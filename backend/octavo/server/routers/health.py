"""/health, /ready and /version."""

from __future__ import annotations

from fastapi import APIRouter

from octavo import __version__
from octavo.server.context import Context
from octavo.server.errors import ApiError


def router(context: Context) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health")
    @routes.head("/health", include_in_schema=False)
    async def health() -> dict[str, str]:
        """200 while there is something to wait for; 503 with the reason once the engine is dead: restart it."""
        status = context.engine.status()
        if status.state == "dead":
            raise ApiError(503, f"the engine is dead: {status.reason}", code="engine_dead")
        return {"status": status.state}

    @routes.get("/ready")
    @routes.head("/ready", include_in_schema=False)
    async def ready() -> dict[str, str]:
        """200 when requests are taken; 503 with the reason before that, while draining, and after."""
        context.check_ready()
        return {"status": "ready"}

    @routes.get("/version")
    async def version() -> dict[str, str]:
        """octavo's version."""
        return {"version": __version__}

    return routes
