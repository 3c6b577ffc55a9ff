"""serve: one process that listens, loads, answers, and ends in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Generator

import uvicorn
import uvloop
from fastapi import FastAPI

from octavo.config import EngineConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.errors import ConfigError, OctavoError
from octavo.observe.logs import setup_logging
from octavo.server.admin import create_admin_app
from octavo.server.app import create_app
from octavo.server.banner import banner
from octavo.server.config import ServerConfig
from octavo.server.listen import listen

logger = logging.getLogger("octavo.server")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Answers are complete once the engine has drained; their last bytes need little more.
_FLUSH_SECONDS = 5


def serve(engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code.

    It listens before the model is loaded, so /health answers at once and a taken port is told at once. The first
    signal stops taking requests and lets the running ones finish for `drain_timeout`; a second ends at once. What
    makes it fail is one line on stderr, and exit code 1.
    """
    setup_logging(engine_config.log_level, server_config.access_log, engine_config.log_format)
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(listen(server_config.host, server_config.port))
            admin = None
            if server_config.admin_port is not None:
                admin = stack.enter_context(listen(server_config.admin_host, server_config.admin_port, "admin_"))
            service = _Service(engine_config, server_config, listener, admin)
        except ConfigError as error:
            return _failed(error)
        return uvloop.run(service.run())


def _failed(error: BaseException) -> int:
    reason = " ".join(str(error).split())
    sys.stderr.write(f"octavo: error: {reason}\n")
    return 1


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: it would end by the signal, before the engine has."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Service:
    """The engine and the HTTP server through their common life."""

    def __init__(
        self,
        engine_config: EngineConfig,
        server_config: ServerConfig,
        listener: socket.socket,
        admin_listener: socket.socket | None,
    ) -> None:
        self._config = server_config
        self._listener = listener
        self._engine = AsyncEngine(engine_config)
        self._servers = [(self._http_server(create_app(self._engine, server_config)), listener)]
        if admin_listener is not None:
            self._servers.append((self._http_server(create_admin_app(self._engine)), admin_listener))
        self._stop = asyncio.Event()

    def _http_server(self, app: FastAPI) -> _HttpServer:
        return _HttpServer(
            uvicorn.Config(
                app,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=self._config.access_log,
                server_header=False,
                timeout_keep_alive=self._config.keep_alive_seconds,
                timeout_graceful_shutdown=_FLUSH_SECONDS,
            )
        )

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        serving = [asyncio.create_task(server.serve(sockets=[socket])) for server, socket in self._servers]
        try:
            return await self._run(serving)
        finally:
            for server, _ in self._servers:
                server.should_exit = True
            await asyncio.gather(*serving, return_exceptions=True)
            await self._engine.shutdown()

    async def _run(self, serving: list[asyncio.Task[None]]) -> int:
        starting = asyncio.create_task(self._engine.start())
        await self._first(starting, *serving)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        else:
            try:
                await starting
            except OctavoError as error:
                return _failed(error)
            sys.stdout.write(banner(self._engine, self._config, self._listener.getsockname()[1]))
            sys.stdout.flush()
            await self._first(*serving)
        if not self._stop.is_set():
            faults = [task.exception() for task in serving if task.done()]
            return _failed(next(filter(None, faults), None) or RuntimeError("the HTTP server ended by itself"))
        logger.info("ending: requests under way have %g s to finish", self._config.drain_timeout)
        await self._engine.drain(self._config.drain_timeout)
        return 0

    async def _first(self, *tasks: asyncio.Task[None]) -> None:
        """Waits until one of `tasks` is done, or the first signal has come. The tasks go on."""
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((stopping, *tasks), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            logger.warning("%s again: ending now", number.name)
            # The core notices that the front is gone, and ends too.
            os._exit(128 + number)
        self._stop.set()
