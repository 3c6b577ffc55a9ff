"""A real server whose core is killed under its clients."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest
from tests.server.process import ServerProcess
from tests.tiny import save_tiny_llama

pytestmark = [pytest.mark.server, pytest.mark.slow]

FLAGS = (
    "--dtype",
    "float32",
    "--num-threads",
    "1",
    "--kv-cache-memory-bytes",
    str(4 << 20),
    "--served-model-name",
    "tiny",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("recovery") / "tiny", context=2048)


def wait_for_status(client: httpx.Client, path: str, status: int) -> None:
    deadline = time.monotonic() + 20
    while client.get(path).status_code != status:
        assert time.monotonic() < deadline, f"{path} did not turn {status}"
        time.sleep(0.01)


def test_a_stream_goes_on_when_its_core_is_killed(model: Path) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1500, "ignore_eos": True, "temperature": 0}
    with ServerProcess(model, *FLAGS) as server, server.wait_ready().client() as client:
        want = client.post("/v1/completions", json=body).json()
        with client.stream(
            "POST", "/v1/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}}
        ) as answer:
            lines = answer.iter_lines()
            chunks = [next(lines)]
            server.core().kill()
            wait_for_status(client, "/ready", 503)
            assert client.get("/health").json() == {"status": "recovering"}
            chunks += lines
        events = [json.loads(line.removeprefix("data: ")) for line in chunks if line and line != "data: [DONE]"]
        assert chunks[-2:] == ["data: [DONE]", ""]
        assert "".join(choice["text"] for event in events for choice in event["choices"]) == want["choices"][0]["text"]
        assert events[-1]["usage"]["completion_tokens"] == 1500
        assert client.get("/ready").status_code == 200
        assert "octavo:core_restarts_total" in client.get("/metrics").text
