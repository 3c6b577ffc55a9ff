"""KServe's ModelServer around an engine, from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import kserve
from kserve import model_server
from prometheus_client import REGISTRY
from starlette.middleware import Middleware

from octavo import AsyncEngine, ConfigError, OctavoError, commandline
from octavo.commandline import Parsed
from octavo.observe.logs import setup_logging
from octavo.server.config import ServerConfig
from octavo_adapters.kserve.data_plane import OctavoDataPlane
from octavo_adapters.kserve.disconnect import WhileConnected
from octavo_adapters.kserve.model import OctavoModel
from octavo_adapters.kserve.options import COMMAND, CommandLine, KServeOptions, engine_config
from octavo_adapters.kserve.routes import add_routes

logger = logging.getLogger("octavo.kserve")

MARGIN_SECONDS = 3.0
"""Of the grace period, kept for ending the engine and the servers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 after SIGTERM and a good end, 1 or 2 with one line on stderr otherwise."""
    try:
        line = CommandLine.split(sys.argv[1:] if arguments is None else arguments)
    except ConfigError as error:
        sys.stderr.write(f"octavo: error: {error}\n")
        return commandline.EXIT_USAGE
    return commandline.run(COMMAND, "python -m octavo_adapters.kserve", line.rest)


def run(parsed: Parsed) -> int:
    """Serves until SIGTERM or SIGINT. Raises ConfigError for what cannot be served."""
    options = parsed.get(KServeOptions)
    config = engine_config(parsed)
    setup_logging(config.log_level, log_format=config.log_format)
    if config.log_level != "debug":
        # Two lines a request, whatever else is asked for.
        logging.getLogger("kserve.trace").setLevel(logging.WARNING)
    return OctavoServer(config, parsed.get(ServerConfig), options, str(parsed.extras["model_name"])).run()


class OctavoServer(kserve.ModelServer):  # type: ignore[misc]
    """The SDK's server, but for its end: not ready first, running requests finish, then the engine goes."""

    def __init__(self, config: Any, openai: ServerConfig, options: KServeOptions, name: str) -> None:
        super().__init__(grace_period=int(options.grace_period))
        self._options = options
        self._octavo = AsyncEngine(config)
        self._model = OctavoModel(name, self._octavo)
        self.dataplane = OctavoDataPlane(self.registered_models, self._octavo)
        add_routes(model_server.app, self._octavo, self._model, openai)
        model_server.app.user_middleware.insert(0, Middleware(WhileConnected))
        REGISTRY.register(self._octavo.metrics)
        self._ending: asyncio.Task[None] | None = None
        self._failed = False

    def run(self) -> int:
        self.start([self._model])
        return 1 if self._failed else 0

    def register_signal_handler(self) -> None:
        """Ours are set on the event loop: see `_serve`."""

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        # uvicorn would end at the signal, before the engine has.
        self._rest_server._server.capture_signals = contextlib.nullcontext
        starting = asyncio.create_task(self._start_engine())
        try:
            await super()._serve()
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await self._octavo.shutdown()

    async def _start_engine(self) -> None:
        try:
            await self._octavo.start()
        except OctavoError as error:
            sys.stderr.write(f"octavo: error: {' '.join(str(error).split())}\n")
            self._failed = True
            await self._end(0)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._ending is not None:
            logger.warning("%s again: ending now", number.name)
            os._exit(128 + number)
        seconds = max(self._options.grace_period - MARGIN_SECONDS, 0)
        logger.info("ending: requests under way have %g s to finish", seconds)
        self._ending = asyncio.create_task(self._end(seconds))

    async def _end(self, seconds: float) -> None:
        """Not ready at once and new requests refused, over every protocol; then what runs; then the servers."""
        await self._octavo.drain(seconds)
        self._rest_server._server.should_exit = True
        if self._grpc_server is not None:
            await self._grpc_server.stop()
