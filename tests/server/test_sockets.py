"""What only a real server on a real socket shows: clients that leave, clients that are slow, bodies cut off."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from tests.server.fake import FakeEngine

from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.listen import listen

COMPLETION = {"model": "tiny", "prompt": "hi", "max_tokens": 60}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def serving(engine: FakeEngine, **options: Any) -> AsyncIterator[int]:
    """The app behind uvicorn as `serve` runs it; gives the port."""
    app = create_app(engine, ServerConfig(**options))
    server = uvicorn.Server(uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, ws="none"))
    with listen("127.0.0.1", 0) as listener:
        task = asyncio.create_task(server._serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await task


def request(path: str, body: object, *extra: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [
        f"POST {path} HTTP/1.1",
        "Host: test",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *extra,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


async def until(condition: Callable[[], bool], seconds: float = 2.0) -> float:
    """Seconds until `condition` held; fails after `seconds`."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it did not happen in time"
        await asyncio.sleep(0.005)
    return time.monotonic() - start


@pytest.mark.parametrize("streamed", [False, True], ids=["document", "stream"])
@pytest.mark.parametrize("when", ["waiting", "decoding"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", COMPLETION),
        ("/v1/completions", {**COMPLETION, "prompt": ["a", "b", "c"], "n": 2}),
        ("/v1/chat/completions", CHAT),
    ],
    ids=["completion", "completions", "chat"],
)
async def test_a_client_that_goes_away_frees_its_request(
    engine: FakeEngine, path: str, body: dict[str, Any], when: str, streamed: bool
) -> None:
    """Before the first token nothing is sent, so a send that fails cannot tell: somebody has to listen."""
    engine.pause = 30 if when == "waiting" else 0.05
    engine.text = "x" * 60
    async with serving(engine) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(path, {**body, "stream": streamed}))
        prompts = body.get("prompt", "")
        expected = len(prompts) if isinstance(prompts, list) else 1
        await until(lambda: engine.running == expected)
        if when == "decoding":
            if streamed:
                await reader.readuntil(b"data: ")
            else:
                await asyncio.sleep(0.12)
        writer.transport.abort()
        assert await until(lambda: engine.running == 0) < 0.5
        assert len(engine.aborted) == expected


async def test_a_client_that_closes_politely_is_gone_too(engine: FakeEngine) -> None:
    engine.pause = 30
    async with serving(engine) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("/v1/completions", COMPLETION))
        await until(lambda: engine.running == 1)
        writer.close()
        await until(lambda: engine.running == 0)


async def test_one_that_leaves_harms_no_other(engine: FakeEngine) -> None:
    engine.pause, engine.text = 0.02, "x" * 30
    async with serving(engine) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        staying = asyncio.create_task(client.post("/v1/completions", json={**COMPLETION, "stream": True}))
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("/v1/completions", COMPLETION))
        await until(lambda: engine.running == 2)
        writer.transport.abort()
        answer = await staying
        assert answer.text.endswith("data: [DONE]\n\n")
        assert len(engine.aborted) == 1


async def test_a_slow_reader_holds_back_itself_alone(engine: FakeEngine) -> None:
    """It is not read for: its stream stops being asked for outputs once the socket's buffers are full."""
    engine.max_model_len = 200_000
    engine.text = "x" * 100_000
    async with serving(engine) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request("/v1/completions", {**COMPLETION, "max_tokens": 100_000, "stream": True}))
        await until(lambda: engine.given > 100)
        before = -1
        while engine.given != before:
            before = engine.given
            await asyncio.sleep(0.2)
        assert engine.given < 60_000
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            answer = await client.post("/v1/completions", json={**COMPLETION, "max_tokens": 3})
            assert answer.json()["choices"][0]["text"] == "xxx"
        writer.transport.abort()
        await until(lambda: engine.running == 0)


async def test_a_connection_is_kept_for_the_next_request(engine: FakeEngine) -> None:
    async with serving(engine) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(request("/v1/completions", {**COMPLETION, "stream": True}))
            raw = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)
            assert raw.startswith(b"HTTP/1.1 200 OK")
            assert b"data: [DONE]" in raw
        writer.write(request("/v1/completions", {**COMPLETION, "n": 0}))
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 400")
        writer.close()


async def test_a_body_too_large_is_told_without_reading_it(engine: FakeEngine) -> None:
    async with serving(engine, max_request_bytes=2000) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = request("/v1/completions", b"x" * 1_000_000, "Expect: 100-continue")
        writer.write(head[: head.index(b"\r\n\r\n") + 4])
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)).startswith(b"HTTP/1.1 413")
        writer.close()

        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(3):
            writer.write(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        writer.write(b"0\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"request_too_large" in answer
        writer.close()


async def test_the_official_clients_way_of_sending_too_much(engine: FakeEngine) -> None:
    """httpx sends the whole body before it reads: the answer must reach it all the same."""
    async with serving(engine, max_request_bytes=100_000) as port:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            answer = await client.post("/v1/completions", json={**COMPLETION, "prompt": "x" * 8_000_000})
        assert answer.status_code == 413


async def test_a_body_that_never_comes_whole(engine: FakeEngine) -> None:
    async with serving(engine) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("/v1/completions", COMPLETION)[:-10])
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert (await client.get("/health")).status_code == 200
        assert engine.calls == []


async def test_an_unexpected_failure_midway_is_logged_and_told(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.error, engine.error_after = ZeroDivisionError("a bug"), 2
    async with serving(engine) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        answer = await client.post("/v1/completions", json={**COMPLETION, "stream": True})
        assert "internal_error" in answer.text
        assert "[DONE]" not in answer.text
        answer = await client.post("/v1/completions", json=COMPLETION)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal_error"
    assert "a bug" in caplog.text
