"""A streaming client of /v1/completions that takes the time of every chunk."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from octavo.bench.workload import ServeWorkload, TextRequest
from octavo.errors import ConfigError

_SHOWN_BODY = 300


@dataclass(slots=True)
class Stream:
    """What came of one request. Times are seconds on the performance counter.

    Attributes:
        chunk_times: when each chunk with text arrived.
        prompt_tokens, output_tokens: by the server's usage.
        error: None if it went well.
    """

    started: float
    finished: float = 0.0
    chunk_times: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        return self.chunk_times[0] - self.started if self.chunk_times else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks; a chunk is one token unless the server joined several."""
        return [later - earlier for earlier, later in zip(self.chunk_times, self.chunk_times[1:], strict=False)]

    @property
    def time_per_output_token(self) -> float | None:
        """Mean seconds a token after the first, by the usage: true however chunks are cut."""
        if self.output_tokens < 2 or len(self.chunk_times) < 2:
            return None
        return (self.chunk_times[-1] - self.chunk_times[0]) / (self.output_tokens - 1)


def http_client(workload: ServeWorkload) -> httpx.AsyncClient:
    """A client on the server's /v1, with a connection for every concurrent stream."""
    base = workload.url.rstrip("/").removesuffix("/v1") + "/v1"
    headers = {"Authorization": f"Bearer {workload.api_key}"} if workload.api_key else {}
    limits = httpx.Limits(max_connections=workload.concurrency, max_keepalive_connections=workload.concurrency)
    return httpx.AsyncClient(base_url=base, headers=headers, limits=limits, timeout=workload.timeout_seconds)


async def discover_model(client: httpx.AsyncClient) -> str:
    """The first model the server lists.

    Raises:
        ConfigError: nobody answers there, or not as an OpenAI server would.
    """
    where = f"{client.base_url}models"
    try:
        response = await client.get("/models")
    except httpx.HTTPError as error:
        raise ConfigError(f"cannot reach {where}: {_reason(error)}; is the server up?", "url") from None
    if response.status_code != httpx.codes.OK:
        raise ConfigError(f"{where} answered {response.status_code}: {_message(response.text)}", "url")
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise ConfigError(f"{where} lists no models; is this an OpenAI-compatible server?", "url") from None


async def complete(client: httpx.AsyncClient, model: str, request: TextRequest, *, ignore_eos: bool) -> Stream:
    """Runs one request to its end. Never raises for what the server or the network does: see `Stream.error`."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.output_len,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ignore_eos:
        body["ignore_eos"] = True
    stream = Stream(started=time.perf_counter())
    try:
        async with client.stream("POST", "/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                text = (await response.aread()).decode(errors="replace")
                stream.error = f"HTTP {response.status_code}: {_message(text)}"
            else:
                await _read(response, stream)
    except httpx.HTTPError as error:
        stream.error = _reason(error)
    stream.finished = time.perf_counter()
    return stream


async def _read(response: httpx.Response, stream: Stream) -> None:
    usage = None
    done = False
    async for data in _events(response):
        now = time.perf_counter()
        if data == "[DONE]":
            done = True
            break
        try:
            event = json.loads(data)
        except ValueError:
            stream.error = f"an event is not JSON: {data[:_SHOWN_BODY]}"
            return
        if "error" in event:
            stream.error = _message(data)
            return
        usage = event.get("usage") or usage
        if any(choice.get("text") for choice in event.get("choices", ())):
            stream.chunk_times.append(now)
    if not done:
        stream.error = "the stream ended without [DONE]"
    elif usage is None:
        stream.error = "the server sent no usage: it must support stream_options.include_usage"
    else:
        stream.prompt_tokens = usage["prompt_tokens"]
        stream.output_tokens = usage["completion_tokens"]


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    """The data of server-sent events; one line each, as every OpenAI server writes them."""
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            yield line[len("data:") :].strip()


def _message(text: str) -> str:
    """The message of OpenAI's error shape, or the text itself."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return " ".join(text.split())[:_SHOWN_BODY] or "no body"


def _reason(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
