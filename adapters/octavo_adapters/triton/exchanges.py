"""Exchanges: requests of Triton's on their way through an engine and back."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Any

from octavo import OctavoError
from octavo.tensors import TensorRequest, generate
from octavo_adapters.triton.engine_thread import EngineThread
from octavo_adapters.triton.responses import Exchange, RequestCancelledError, Responses

logger = logging.getLogger("octavo.triton")


class Exchanges:
    """Each request ends with exactly one final response, whatever becomes of it."""

    def __init__(self, engine: EngineThread, responses: Responses) -> None:
        self._engine = engine
        self._responses = responses
        self._tasks: dict[Exchange, asyncio.Task[None]] = {}

    def begin(self, sender: Any, inputs: dict[str, list[Any]], parameters: dict[str, Any]) -> None:
        """Hands a request over to the engine's thread; waits for nothing.

        Args:
            sender: Triton's InferenceResponseSender.
            inputs, parameters: see `TensorRequest.parse`.
        """
        exchange = Exchange(sender, self._cancel)
        self._responses.open(exchange)
        self._engine.submit(self._answer(exchange, inputs, parameters))

    def refuse(self, sender: Any, error: BaseException) -> None:
        """Answers a request that could not even be read."""
        self._responses.fail(Exchange(sender, self._cancel), error)

    async def _answer(self, exchange: Exchange, inputs: dict[str, list[Any]], parameters: dict[str, Any]) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks[exchange] = task
        try:
            if exchange.cancelled:
                # Before there was a task to cancel.
                raise RequestCancelledError("the request was cancelled")
            request = TensorRequest.parse(inputs, parameters)
            async with aclosing(generate(self._engine.engine, request)) as answers:
                async for tensors, final in answers:
                    self._responses.put(exchange, tensors, final=final)
        except asyncio.CancelledError:
            self._fail(exchange, RequestCancelledError("the request was cancelled"))
        except Exception as error:
            if not isinstance(error, (OctavoError, RequestCancelledError)):
                logger.exception("a request failed unexpectedly")
            self._fail(exchange, error)
        finally:
            self._tasks.pop(exchange, None)
            self._fail(exchange, RuntimeError("the engine gave no answer"))

    def _fail(self, exchange: Exchange, error: BaseException) -> None:
        if not exchange.ended:
            self._responses.fail(exchange, error)

    def _cancel(self, exchange: Exchange) -> None:
        def cancel() -> None:
            task = self._tasks.get(exchange)
            if task is not None:
                task.cancel()

        self._engine.call(cancel)
