"""/metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response

from octavo.server.context import Context


def router(context: Context) -> APIRouter:
    routes = APIRouter()

    @routes.get("/metrics")
    async def metrics() -> Response:
        """The engine's metrics in Prometheus' text format."""
        body, content_type = context.engine.metrics.render()
        return Response(body, media_type=content_type)

    return routes
