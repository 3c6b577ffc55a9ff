"""create_app: the OpenAI-compatible ASGI app. A plain web app, which any ASGI server or framework can run or mount."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from octavo import __version__
from octavo.errors import ConfigError
from octavo.server import errors
from octavo.server.config import ServerConfig
from octavo.server.context import Context
from octavo.server.keys import ApiKeys
from octavo.server.request_id import RequestIds
from octavo.server.routers import chat, completions, health, metrics, models, tokens

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(engine: AsyncEngine, config: ServerConfig | None = None, *, lifespan: Lifespan | None = None) -> FastAPI:
    """The app. It answers as soon as it runs; until the engine is ready, requests for tokens get a 503.

    Args:
        engine: started and shut down by whoever made it, or by `lifespan`.
        config: its `admin_port` is for whoever runs the app: here it only takes /metrics away.
        lifespan: e.g. `engine_lifespan(engine)`, for servers that run an app's lifespan. A mounted app's is not run.

    Raises:
        ConfigError: the API key file cannot be read, or keys are to be isolated and there are none.
    """
    config = config or ServerConfig()
    if config.isolate_api_keys and not config.wants_keys:
        raise ConfigError("isolate_api_keys needs keys: give api_key or api_key_file", "isolate_api_keys")
    context = Context(engine, config, ApiKeys.load(config.api_key, config.api_key_file))
    middleware = [Middleware(RequestIds)]
    if config.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=config.allowed_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["x-request-id"],
            )
        )
    middleware.append(Middleware(errors.Failsafe))
    app = FastAPI(
        title="octavo",
        version=__version__,
        lifespan=lifespan,
        middleware=middleware,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    errors.install(app)
    app.include_router(health.router(context.engine))
    if config.admin_port is None:
        app.include_router(metrics.router(context.engine))
    for part in (completions, chat, models, tokens):
        app.include_router(part.router(context), dependencies=[Depends(context.authorise)])
    return app


def engine_lifespan(engine: AsyncEngine, drain_timeout: float = 30.0) -> Lifespan:
    """Starts the engine with the app, and drains it and shuts it down with the app."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await engine.start()
            yield
            await engine.drain(drain_timeout)
        finally:
            await engine.shutdown()

    return lifespan
