"""A tiny OpenAI server in this process: scripted chunks, usage and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any] | str


def well_behaved(body: dict[str, Any]) -> list[Event]:
    """Two tokens a chunk, then usage: chunks must not be taken for tokens."""
    count = int(body["max_tokens"])
    chunks: list[Event] = [{"choices": [{"index": 0, "text": "ab"}]} for _ in range((count + 1) // 2)]
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
    return [{"choices": [{"index": 0, "text": ""}]}, *chunks, {"choices": [], "usage": usage}, "[DONE]"]


@dataclass
class FakeServer:
    """Attributes:
    script: the events of one request's stream, by its body.
    status: of the answer to /v1/completions.
    delay: seconds before each event.
    bodies: what was asked for, in order of arrival.
    most_at_once: streams that ran at the same time.
    """

    script: Callable[[dict[str, Any]], list[Event]] = well_behaved
    status: int = 200
    models: Any = field(default_factory=lambda: {"data": [{"id": "fake-model"}, {"id": "other"}]})
    delay: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    url: str = ""
    _running: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                path = line.split()[1].decode()
                headers = {}
                while (header := (await reader.readline()).decode().strip()) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                raw = await reader.readexactly(int(headers.get("content-length", 0)))
                self.headers.append(headers)
                if path == "/v1/models":
                    self._whole(writer, 200, self.models)
                elif self.status != 200:
                    self._whole(writer, self.status, {"error": {"message": "no such thing"}})
                else:
                    await self._stream(writer, json.loads(raw))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _whole(self, writer: asyncio.StreamWriter, status: int, body: Any) -> None:
        raw = json.dumps(body).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n".encode())
        writer.write(f"Content-Length: {len(raw)}\r\n\r\n".encode() + raw)

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in self.script(body):
            await asyncio.sleep(self.delay)
            if event == "cut":
                writer.close()
                break
            data = event if isinstance(event, str) else json.dumps(event)
            raw = f"data: {data}\n\n".encode()
            writer.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
            await writer.drain()
        else:
            writer.write(b"0\r\n\r\n")
        self._running -= 1
