"""create_admin_app: what operators ask, for a port that clients cannot reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware import Middleware

from octavo import __version__
from octavo.server import errors
from octavo.server.routers import debug, health, metrics

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine


def create_admin_app(engine: AsyncEngine) -> FastAPI:
    """/metrics, /health, /ready, /version and /debug; no keys are asked for."""
    app = FastAPI(
        title="octavo admin",
        version=__version__,
        middleware=[Middleware(errors.Failsafe)],
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    errors.install(app)
    for part in (health, metrics, debug):
        app.include_router(part.router(engine))
    return app
