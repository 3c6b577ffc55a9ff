"""A request's way where the real server cannot be made to hit the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from octavo import EngineStoppedError
from octavo_adapters.triton.exchanges import Exchanges
from octavo_adapters.triton.responses import Exchange, RequestCancelledError


class Responses:
    """Remembers what is said."""

    def __init__(self) -> None:
        self.opened: list[Exchange] = []
        self.errors: list[BaseException] = []

    def open(self, exchange: Exchange) -> None:
        self.opened.append(exchange)

    def fail(self, exchange: Exchange, error: BaseException) -> None:
        assert not exchange.ended
        exchange.ended = True
        self.errors.append(error)


class EngineThread:
    """The test's own event loop, in the order in which things are submitted; the engine is `accepting` or raises."""

    def __init__(self, accepting: Callable[[], None]) -> None:
        self.engine = SimpleNamespace(check_accepting=accepting)
        self._loop = asyncio.get_running_loop()
        self.tasks: list[asyncio.Task[None]] = []

    def submit(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.call_soon(lambda: self.tasks.append(self._loop.create_task(work)))

    def call(self, function: Callable[..., object]) -> None:
        self._loop.call_soon(function)

    async def finish(self) -> None:
        while not self.tasks:
            await asyncio.sleep(0)
        await asyncio.gather(*self.tasks)


async def test_a_cancel_before_the_first_step_is_not_lost() -> None:
    """The engine's thread was told of request and cancel in one turn of its loop: there was no task to cancel yet, the
    client was never asked about again, and the request ran to its end."""

    def accepting() -> None:
        pytest.fail("the engine is asked though the client is gone")

    responses = Responses()
    engine = EngineThread(accepting)
    exchanges = Exchanges(engine, responses)  # type: ignore[arg-type]
    exchanges.begin(object(), {"text_input": [b"x"]}, {})
    (exchange,) = responses.opened
    exchange.cancelled = True
    exchange.on_cancelled(exchange)
    await engine.finish()
    (error,) = responses.errors
    assert isinstance(error, RequestCancelledError)


async def test_each_failure_is_one_final_response() -> None:
    def accepting() -> None:
        raise EngineStoppedError("stopping")

    responses = Responses()
    engine = EngineThread(accepting)
    exchanges = Exchanges(engine, responses)  # type: ignore[arg-type]
    exchanges.begin(object(), {"text_input": [b"x"]}, {})
    await engine.finish()
    exchanges.refuse(object(), ValueError("unreadable"))
    assert [str(error) for error in responses.errors] == ["stopping", "unreadable"]
