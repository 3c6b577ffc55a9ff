"""/health, /ready and /version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from octavo import __version__
from octavo.server.errors import ApiError
from octavo.server.readiness import check_ready

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine


def router(engine: AsyncEngine) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health")
    @routes.head("/health", include_in_schema=False)
    async def health() -> dict[str, str]:
        """200 while there is something to wait for; 503 with the reason once the engine is dead: restart it."""
        status = engine.status()
        if status.state == "dead":
            raise ApiError(503, f"the engine is dead: {status.reason}", code="engine_dead")
        return {"status": status.state}

    @routes.get("/ready")
    @routes.head("/ready", include_in_schema=False)
    async def ready() -> dict[str, str]:
        """200 when requests are taken; 503 with the reason before that, while draining, and after."""
        check_ready(engine)
        return {"status": "ready"}

    @routes.get("/version")
    async def version() -> dict[str, str]:
        """octavo's version."""
        return {"version": __version__}

    return routes
