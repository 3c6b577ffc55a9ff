"""/debug/steps and /debug/requests: for the admin port alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, Query, Response

from octavo.engine.recorder import NUM_STEPS

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine


def router(engine: AsyncEngine) -> APIRouter:
    routes = APIRouter()

    @routes.get("/debug/steps")
    async def steps(count: Annotated[int, Query(ge=1, le=NUM_STEPS)] = NUM_STEPS) -> Response:
        """The core's last steps, oldest first; `mark` stands for a request, see /debug/requests."""
        return _json({"now": time.monotonic(), "steps": engine.recent_steps(count)})

    @routes.get("/debug/requests")
    async def requests() -> Response:
        """What is in flight, oldest first; no prompts, no texts."""
        return _json({"status": engine.status(), "requests": engine.requests()})

    return routes


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
