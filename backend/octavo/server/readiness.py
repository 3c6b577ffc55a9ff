"""Whether the engine takes requests, as HTTP tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.server.errors import ApiError

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine

_CODES = {
    "starting": "engine_starting",
    "recovering": "engine_recovering",
    "draining": "engine_draining",
    "dead": "engine_dead",
}


def check_ready(engine: AsyncEngine) -> None:
    """Raises ApiError (503) with the reason while requests are not taken, or would have to wait for a core."""
    status = engine.status()
    if status.state == "ready":
        return
    headers = {} if status.state == "dead" else {"Retry-After": "1"}
    raise ApiError(503, f"the engine is {status.state}: {status.reason}", code=_CODES[status.state], headers=headers)
