"""Too much at once and too slow: 429 and 408 as clients expect them, on the fake engine and on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from tests.server.fake import FakeEngine
from tests.server.process import KEY, ServerProcess
from tests.server.test_recovery import FLAGS
from tests.tiny import save_tiny_llama

from octavo.errors import EngineOverloadedError, RequestTimeoutError

BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"model": "tiny", "prompt": "hi"}),
    ("/v1/completions", {"model": "tiny", "prompt": "hi", "stream": True}),
    ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_an_overloaded_engine(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    engine.overloaded = EngineOverloadedError("the engine is overloaded: try again later", 7)
    answer = await client.post(path, json=body)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "7"
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("engine_overloaded", "rate_limit_error")
    assert not engine.calls


@pytest.mark.parametrize(("path", "body"), BODIES)
@pytest.mark.parametrize(
    ("field", "header", "want"),
    [(None, None, None), (2.5, None, 2.5), (None, "4", 4.0), (3, "4", 3.0)],
)
async def test_the_time_a_request_may_take(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    path: str,
    body: dict[str, Any],
    field: float | None,
    header: str | None,
    want: float | None,
) -> None:
    headers = {} if header is None else {"x-request-timeout": header}
    answer = await client.post(path, json={**body, "timeout": field}, headers=headers)
    assert answer.status_code == 200
    assert [call.timeout for call in engine.calls] == [want]


@pytest.mark.parametrize("header", ["soon", "0", "-1", "nan", "inf", ""])
async def test_a_header_that_is_no_time(client: httpx.AsyncClient, engine: FakeEngine, header: str) -> None:
    answer = await client.post("/v1/completions", json=BODIES[0][1], headers={"x-request-timeout": header})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-request-timeout"
    assert not engine.calls


async def test_past_its_time(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.error = RequestTimeoutError("the request did not end within 2 s (timeout)")
    answer = await client.post("/v1/completions", json=BODIES[0][1])
    assert answer.status_code == 408
    assert answer.json()["error"]["code"] == "request_timeout"
    # Or OpenAI's clients would wait as long twice more.
    assert answer.headers["x-should-retry"] == "false"
    engine.error_after = 2
    streamed = await client.post("/v1/completions", json=BODIES[1][1])
    assert '"code":"request_timeout"' in streamed.text.splitlines()[-2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = save_tiny_llama(tmp_path_factory.mktemp("overload") / "tiny", context=2048)
    flags = ("--max-num-seqs", "2", "--max-queued-requests", "2")
    with ServerProcess(model, *FLAGS, *flags) as one:
        yield one.wait_ready()


@pytest.mark.server
@pytest.mark.slow
async def test_more_clients_than_the_queue_holds(server: ServerProcess) -> None:
    """Four of twelve fit at a time; the official client waits and tries again, and all are served."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:

        async def ask(one: openai.AsyncOpenAI) -> int:
            answer = await one.completions.create(
                model="tiny", prompt="x", max_tokens=200, temperature=0, extra_body={"ignore_eos": True}
            )
            assert answer.usage is not None
            return answer.usage.completion_tokens

        results = await asyncio.gather(*(ask(client) for _ in range(12)), return_exceptions=True)
        refused = [one for one in results if isinstance(one, openai.RateLimitError)]
        assert results.count(200) == 12 - len(refused)
        assert results.count(200) >= 4
        assert refused
        assert all(int(one.response.headers["retry-after"]) >= 1 for one in refused)
        patient = client.with_options(max_retries=20)
        assert await asyncio.gather(*(ask(patient) for _ in range(12))) == [200] * 12
    assert server.wait_idle()["octavo:requests_refused_total"] >= len(refused)


@pytest.mark.server
@pytest.mark.slow
def test_a_deadline_ends_a_stream_with_an_error(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:
        stream = client.completions.create(
            model="tiny",
            prompt="x",
            max_tokens=2000,
            n=2,
            stream=True,
            extra_body={"ignore_eos": True, "timeout": 0.2},
        )
        with pytest.raises(openai.APIError, match=r"did not end within 0\.2 s"):
            for _ in stream:
                pass
        with pytest.raises(openai.APIStatusError) as caught:
            client.completions.create(
                model="tiny", prompt="x", max_tokens=2000, extra_headers={"x-request-timeout": "0.001"}
            )
        assert caught.value.status_code == 408
    before = server.wait_idle()
    assert before["vllm:kv_cache_usage_perc"] == 0
