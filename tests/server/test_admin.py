"""The admin port: on the fake engine, and beside a real server."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from tests.server.fake import FakeEngine, Status
from tests.server.process import ServerProcess
from tests.server.test_recovery import FLAGS

from octavo.engine.in_flight import RequestState
from octavo.engine.recorder import RecordedRow, RecordedStep, StepTimes
from octavo.server.admin import create_admin_app

MakeClient = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def admin(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_admin_app(engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_steps_and_requests(admin: httpx.AsyncClient, engine: FakeEngine) -> None:
    step = RecordedStep(3, 1.5, StepTimes(0.1, 2.0, 0.2), True, 1, 1, 0, 0.25, (RecordedRow(7, 4, 1),))
    engine.steps = [step] * 3
    engine.in_flight = [RequestState("cmpl-1", 7, "decoding", 2.0, 0.1, 5, 9, 1)]
    answer = (await admin.get("/debug/steps", params={"count": 2})).json()
    assert len(answer["steps"]) == 2
    assert answer["steps"][0]["times"] == {"plan": 0.1, "execute": 2.0, "update": 0.2}
    assert answer["steps"][0]["rows"] == [{"mark": 7, "start": 4, "tokens": 1}]
    answer = (await admin.get("/debug/requests")).json()
    assert answer["status"] == {"state": "ready", "reason": "ready"}
    assert answer["requests"][0]["request_id"] == "cmpl-1"
    for count in (0, 257, "many"):
        refused = await admin.get("/debug/steps", params={"count": count})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "count")


async def test_probes_and_metrics(admin: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert "vllm:num_requests_running" in (await admin.get("/metrics")).text
    engine.state = Status("dead", "killed")
    assert (await admin.get("/health")).status_code == 503
    assert (await admin.get("/v1/models")).status_code == 404


async def test_the_main_port_has_no_debug_and_gives_its_metrics_away(make_client: MakeClient) -> None:
    async with make_client() as client:
        assert (await client.get("/debug/steps")).status_code == 404
        assert (await client.get("/metrics")).status_code == 200
    async with make_client(admin_port=0) as client:
        assert (await client.get("/metrics")).status_code == 404
        assert (await client.get("/health")).status_code == 200


@pytest.mark.server
@pytest.mark.slow
def test_a_real_admin_port(tiny_model_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ["--port", "0", "--admin-port", str(port)]
        failed = subprocess.run(
            [sys.executable, "-m", "octavo.server", str(tiny_model_path), *flags],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert failed.returncode == 1
        (line,) = failed.stderr.splitlines()
        assert line.endswith("address already in use; choose another with --admin-port")
    with (
        ServerProcess(tiny_model_path, *FLAGS, "--admin-port", str(port)) as server,
        server.wait_ready().client() as client,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as admin,
    ):
        body = {"model": "tiny", "prompt": "the fox", "max_tokens": 5, "ignore_eos": True}
        assert client.post("/v1/completions", json=body).status_code == 200
        assert client.get("/metrics").status_code == 404
        assert "vllm:generation_tokens_total" in admin.get("/metrics").text
        steps = admin.get("/debug/steps").json()["steps"]
        assert sum(step["num_tokens"] for step in steps[-5:]) >= 5
        assert admin.get("/debug/requests").json()["requests"] == []
        server.process.terminate()
        assert server.wait_exit() == 0
