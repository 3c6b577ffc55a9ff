"""`octavo bench serve`: concurrent streaming clients against any OpenAI server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
from tqdm import tqdm

from octavo.bench import plot, report
from octavo.bench.client import Stream, complete, discover_model, http_client
from octavo.bench.machine import Machine, describe
from octavo.bench.stats import Percentiles
from octavo.bench.workload import ServeWorkload, TextRequest, corpus, serve_requests
from octavo.commandline import EXIT_FAILED, Parsed


@dataclass(frozen=True, slots=True)
class ServeResult:
    """Attributes:
    prompt_tokens, output_tokens: by the server's usage, over the requests that went well.
    ttft: from sending the request to the first chunk with text.
    itl: between the chunks of a request; a chunk is a token unless the server joined several.
    time_per_output_token: a request's mean after its first token, by usage.
    errors: how often each happened.
    machine: where the clients ran.
    """

    model: str
    workload: dict[str, Any]
    concurrency: int
    seconds: float
    completed: int
    failed: int
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_second: float
    total_tokens_per_second: float
    requests_per_second: float
    ttft: Percentiles
    itl: Percentiles
    time_per_output_token: Percentiles
    request_seconds: Percentiles
    errors: dict[str, int]
    ttft_samples: list[float]
    itl_samples: list[float]
    machine: Machine


async def measure(workload: ServeWorkload, *, use_tqdm: bool = False) -> ServeResult:
    """One short warm-up request, then the workload from `concurrency` clients.

    Raises:
        ConfigError: there is no OpenAI server at the URL.
    """
    requests = serve_requests(workload, corpus())
    async with http_client(workload) as client:
        model = workload.served_model or await discover_model(client)
        # Begins like no other prompt, so that it warms no prefix cache.
        await complete(client, model, TextRequest("Good morning.", 1), ignore_eos=workload.ignore_eos)
        start = time.perf_counter()
        with tqdm(total=len(requests), unit="req", desc="Requests", disable=not use_tqdm) as bar:
            streams = await _drive(client, model, requests, workload, bar)
        seconds = time.perf_counter() - start
    return _result(model, workload, streams, seconds)


def run(parsed: Parsed) -> int:
    """Measures and reports; the exit code is 1 if a request failed."""
    json_file, plot_file = parsed.extras["json_file"], parsed.extras["plot_file"]
    report.check_outputs(json_file, plot_file)
    result = asyncio.run(measure(parsed.get(ServeWorkload), use_tqdm=True))
    report.show(f"Serving {result.model}", _rows(result), result.machine)
    report.write(result, json_file, plot_file, lambda path: plot.draw_serve(result, path))
    return EXIT_FAILED if result.failed else 0


async def _drive(
    client: httpx.AsyncClient, model: str, requests: list[TextRequest], workload: ServeWorkload, bar: tqdm[Any]
) -> list[Stream]:
    pending: Iterator[TextRequest] = iter(requests)
    streams: list[Stream] = []

    async def one_client() -> None:
        for request in pending:
            streams.append(await complete(client, model, request, ignore_eos=workload.ignore_eos))
            bar.update(1)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(workload.concurrency, len(requests))):
            group.create_task(one_client())
    return streams


def _result(model: str, workload: ServeWorkload, streams: list[Stream], seconds: float) -> ServeResult:
    good = [stream for stream in streams if stream.error is None]
    prompt_tokens = sum(stream.prompt_tokens for stream in good)
    output_tokens = sum(stream.output_tokens for stream in good)
    ttfts = [stream.ttft for stream in good if stream.ttft is not None]
    gaps = [gap for stream in good for gap in stream.gaps]
    per_token = [stream.time_per_output_token for stream in good]
    return ServeResult(
        model=model,
        workload=workload.model_dump(mode="json", exclude={"api_key"}),
        concurrency=workload.concurrency,
        seconds=seconds,
        completed=len(good),
        failed=len(streams) - len(good),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        output_tokens_per_second=output_tokens / seconds,
        total_tokens_per_second=(prompt_tokens + output_tokens) / seconds,
        requests_per_second=len(good) / seconds,
        ttft=Percentiles.of(ttfts),
        itl=Percentiles.of(gaps),
        time_per_output_token=Percentiles.of([value for value in per_token if value is not None]),
        request_seconds=Percentiles.of([stream.finished - stream.started for stream in good]),
        errors=dict(Counter(stream.error for stream in streams if stream.error is not None).most_common()),
        ttft_samples=ttfts,
        itl_samples=gaps,
        machine=describe(),
    )


def _rows(result: ServeResult) -> list[report.Row]:
    rows = [
        ("Clients", f"{result.concurrency}"),
        ("Requests", f"{result.completed} completed, {result.failed} failed"),
        ("Time", f"{result.seconds:.2f} s"),
        ("Prompt tokens", f"{result.prompt_tokens:,}"),
        ("Output tokens", f"{result.output_tokens:,}"),
        ("Output tok/s", f"{result.output_tokens_per_second:,.1f}"),
        ("Total tok/s", f"{result.total_tokens_per_second:,.1f}"),
    ]
    for name, times in (
        ("Time to first token", result.ttft),
        ("Inter-token latency", result.itl),
        ("Time per output token", result.time_per_output_token),
    ):
        rows.append((f"{name}, p50 / p99", f"{report.milliseconds(times.p50)} / {report.milliseconds(times.p99)}"))
    rows += [(f"Error x {count}", message) for message, count in result.errors.items()]
    return rows
