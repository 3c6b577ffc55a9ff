"""`octavo bench serve` against a server whose every token is known."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import plot, report
from octavo.bench.client import Stream
from octavo.bench.serve import ServeResult, measure
from octavo.bench.workload import ServeWorkload, corpus, serve_requests
from octavo.errors import ConfigError
from tests.bench.fake_server import Event, FakeServer, well_behaved

SMALL: dict[str, Any] = {"num_requests": 12, "concurrency": 4, "min_output_len": 3, "max_output_len": 9}


async def run(server: FakeServer, **options: Any) -> tuple[ServeResult, ServeWorkload]:
    async with server.running():
        workload = ServeWorkload(url=server.url, **{**SMALL, **options})
        return await measure(workload), workload


async def test_tokens_are_counted_by_usage_and_times_by_chunks() -> None:
    server = FakeServer(delay=0.002)
    result, workload = await run(server)
    wanted = serve_requests(workload, corpus())
    assert (result.completed, result.failed, result.errors) == (12, 0, {})
    assert result.model == "fake-model"
    assert result.output_tokens == sum(request.output_len for request in wanted)
    assert result.prompt_tokens == sum(len(request.prompt) for request in wanted)
    assert len(result.itl_samples) == sum((request.output_len + 1) // 2 - 1 for request in wanted)
    assert len(result.ttft_samples) == 12
    # The first event has no text: it is not the first token.
    assert min(result.ttft_samples) >= 0.004
    assert result.ttft.p50 is not None
    assert result.ttft.p99 is not None
    assert result.ttft.p50 <= result.ttft.p99
    assert result.output_tokens_per_second == pytest.approx(result.output_tokens / result.seconds)
    assert server.most_at_once == 4


async def test_requests_are_what_the_workload_says() -> None:
    server = FakeServer()
    _, workload = await run(server, api_key="key", served_model="mine")
    warm_up, *measured = server.bodies
    assert warm_up["max_tokens"] == 1
    wanted = sorted((request.prompt, request.output_len) for request in serve_requests(workload, corpus()))
    assert sorted((body["prompt"], body["max_tokens"]) for body in measured) == wanted
    for body in measured:
        assert body["model"] == "mine"
        assert body["stream_options"] == {"include_usage": True}
        assert body["ignore_eos"] is True
        assert body["temperature"] == 0
    assert all(headers["authorization"] == "Bearer key" for headers in server.headers)


async def test_ignore_eos_can_be_left_out_and_the_url_may_end_in_v1() -> None:
    server = FakeServer()
    async with server.running():
        await measure(ServeWorkload(url=server.url + "/v1/", ignore_eos=False, **SMALL))
    assert all("ignore_eos" not in body for body in server.bodies)


def _error_event(body: dict[str, Any]) -> list[Event]:
    return [{"choices": [{"text": "a"}]}, {"error": {"message": "the engine died"}}, "[DONE]"]


def _no_usage(body: dict[str, Any]) -> list[Event]:
    return [{"choices": [{"text": "a"}]}, "[DONE]"]


def _no_done(body: dict[str, Any]) -> list[Event]:
    return well_behaved(body)[:-1]


def _cut(body: dict[str, Any]) -> list[Event]:
    return [{"choices": [{"text": "a"}]}, "cut"]


def _not_json(body: dict[str, Any]) -> list[Event]:
    return ["{oops"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (_error_event, "the engine died"),
        (_no_usage, "stream_options.include_usage"),
        (_no_done, "without [DONE]"),
        (_cut, "RemoteProtocolError"),
        (_not_json, "not JSON: {oops"),
    ],
)
async def test_a_broken_stream_is_an_error_and_not_a_result(script: Any, words: str) -> None:
    result, _ = await run(FakeServer(script=script))
    assert (result.completed, result.failed, result.output_tokens) == (0, 12, 0)
    (message,) = result.errors
    assert words in message
    assert result.errors[message] == 12
    assert result.ttft.p50 is None


async def test_a_refused_request_is_an_error_with_the_servers_words() -> None:
    result, _ = await run(FakeServer(status=404))
    assert result.errors == {"HTTP 404: no such thing": 12}


async def test_some_failures_leave_the_rest() -> None:
    def sometimes(body: dict[str, Any]) -> list[Event]:
        return _no_done(body) if len(server.bodies) % 3 == 0 else well_behaved(body)

    server = FakeServer(script=sometimes)
    result, _ = await run(server)
    assert result.failed == 4
    assert result.completed == 8
    assert result.output_tokens > 0


@pytest.mark.parametrize("models", [{"data": []}, {"object": "nothing"}, ["x"]])
async def test_a_server_without_models_is_named(models: Any) -> None:
    with pytest.raises(ConfigError, match="lists no models"):
        await run(FakeServer(models=models))


async def test_nobody_there() -> None:
    with pytest.raises(ConfigError, match=r"cannot reach .*/v1/models.*is the server up"):
        await measure(ServeWorkload(url="http://127.0.0.1:9"))


def test_time_per_output_token_does_not_depend_on_chunks() -> None:
    stream = Stream(started=0.0, chunk_times=[1.0, 2.0, 4.0], output_tokens=7)
    assert stream.ttft == 1.0
    assert stream.gaps == [1.0, 2.0]
    assert stream.time_per_output_token == pytest.approx(0.5)
    assert Stream(started=0.0, chunk_times=[1.0], output_tokens=1).time_per_output_token is None


def test_json_and_png(tmp_path: Path) -> None:
    result, _ = asyncio.run(run(FakeServer(), api_key="secret-key"))
    json_file, plot_file = str(tmp_path / "r.json"), str(tmp_path / "r.png")
    report.write(result, json_file, plot_file, lambda path: plot.draw_serve(result, path))
    read = json.loads(Path(json_file).read_text())
    assert read["output_tokens"] == result.output_tokens
    assert set(read["machine"]) >= {"cpu", "cpus", "torch", "octavo"}
    assert "secret-key" not in Path(json_file).read_text()
    assert Path(plot_file).read_bytes().startswith(b"\x89PNG")


def test_a_run_in_which_all_failed_can_be_drawn(tmp_path: Path) -> None:
    result, _ = asyncio.run(run(FakeServer(status=500)))
    report.write(result, str(tmp_path / "r.json"), None, None)
    plot.draw_serve(result, str(tmp_path / "r.png"))
    assert json.loads((tmp_path / "r.json").read_text())["ttft"]["p50"] is None
