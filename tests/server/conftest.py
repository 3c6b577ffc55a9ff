from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from tests.server.fake import FakeEngine

from octavo.server.app import create_app
from octavo.server.config import ServerConfig


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def make_client(engine: FakeEngine) -> Callable[..., httpx.AsyncClient]:
    """A client of an app around `engine`; keywords are ServerConfig's."""

    def make(**options: Any) -> httpx.AsyncClient:
        app = create_app(engine, ServerConfig(**options))
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

    return make


@pytest.fixture
async def client(make_client: Callable[..., httpx.AsyncClient]) -> AsyncIterator[httpx.AsyncClient]:
    async with make_client() as client:
        yield client
