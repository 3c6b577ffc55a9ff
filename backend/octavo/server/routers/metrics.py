"""/metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Response

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine


def router(engine: AsyncEngine) -> APIRouter:
    routes = APIRouter()

    @routes.get("/metrics")
    async def metrics() -> Response:
        """The engine's metrics in Prometheus' text format."""
        body, content_type = engine.metrics.render()
        return Response(body, media_type=content_type)

    return routes
