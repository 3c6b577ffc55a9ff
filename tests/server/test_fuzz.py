"""Random requests against a real server: whatever comes, no 5xx, no silence, and the server goes on."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from tests.server.process import KEY, ServerProcess
from tests.server.test_recovery import FLAGS
from tests.tiny import save_tiny_llama

pytestmark = [pytest.mark.server, pytest.mark.slow]

PATHS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
QUICK = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = save_tiny_llama(tmp_path_factory.mktemp("fuzz") / "tiny", context=64)
    with ServerProcess(model, *FLAGS) as one:
        yield one.wait_ready()
        # It has survived, and nothing is left running.
        assert one.process.poll() is None
        assert one.wait_idle()["octavo:core_restarts_total"] == 0
        assert "Traceback" not in one.stderr


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client() as one:
        yield one


def test_requests_made_from_the_schema(server: ServerProcess) -> None:
    """Everything the OpenAPI document says can be sent, and everything it says cannot."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    seen: set[str] = set()
    statuses: Counter[int] = Counter()
    headers = {"Authorization": f"Bearer {KEY}"}
    for made in schema.get_all_operations():
        operation = made.ok()
        seen.add(f"{operation.method.upper()} {operation.path}")

        @settings(QUICK, max_examples=60, phases=[Phase.explicit, Phase.generate])
        @given(case=operation.as_strategy() | operation.as_strategy(schemathesis.GenerationMode.NEGATIVE))
        def check(case: Any) -> None:
            if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
                case.body["model"] = "tiny"
            answer = case.call(headers=headers, timeout=60)
            statuses[answer.status_code] += 1
            case.validate_response(answer, checks=[not_a_server_error])

        check()
    assert {f"POST {path}" for path in PATHS} <= seen
    assert statuses[200] > 5, statuses
    assert statuses[400] > 100, statuses


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    [
        "model",
        "prompt",
        "messages",
        "max_tokens",
        "n",
        "stop",
        "stream",
        "logprobs",
        "seed",
        "temperature",
        "timeout",
        "top_k",
        "logit_bias",
        "stream_options",
        "tokens",
        "echo",
        "tools",
        "response_format",
        "cache_salt",
        "priority",
    ]
)
NEARLY = st.dictionaries(FIELDS, JSON | st.sampled_from(["tiny", "x", 1, 3, True, [1, 2], [[5]]]), max_size=6).map(
    lambda fields: {"model": "tiny", "max_tokens": 3, **fields}
)
BODIES = st.binary(max_size=200) | JSON.map(json.dumps).map(str.encode) | NEARLY.map(json.dumps).map(str.encode)


@pytest.mark.parametrize("path", PATHS)
def test_raw_bodies(client: httpx.Client, path: str) -> None:
    @settings(QUICK, max_examples=150)
    @given(body=BODIES, media=st.sampled_from(["application/json"] * 6 + ["text/plain", "", "application/x+json; a=b"]))
    def check(body: bytes, media: str) -> None:
        answer = client.post(path, content=body, headers={"content-type": media})
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            assert answer.json()["error"]["message"]
        elif answer.headers["content-type"].startswith("text/event-stream"):
            assert answer.text.endswith("data: [DONE]\n\n")

    check()
    assert client.get("/ready").status_code == 200


HEADS = st.sampled_from(
    [
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%d\r\n",
        b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n",
        b"GET /%d\x00 HTTP/1.1\r\n\r\n",
        b"%d",
    ]
)


def test_raw_bytes_on_the_socket(server: ServerProcess, client: httpx.Client) -> None:
    """What is no HTTP, or breaks off: the connection may be closed, but the next one is served."""
    address = httpx.URL(server.url)

    @settings(QUICK, max_examples=80)
    @given(head=HEADS, length=st.integers(0, 300), body=st.binary(max_size=120))
    def check(head: bytes, length: int, body: bytes) -> None:
        with socket.create_connection((address.host, address.port or 80), timeout=30) as raw:
            raw.sendall(head % length + body)
            raw.shutdown(socket.SHUT_WR)
            try:
                answer = raw.recv(1 << 16)
            except ConnectionResetError:
                return
            assert not answer.startswith(b"HTTP/1.1 5"), answer

    check()
    assert client.get("/ready").status_code == 200
