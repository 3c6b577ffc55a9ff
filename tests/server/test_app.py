from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from fastapi import FastAPI
from tests.server.fake import FakeEngine, Status

from octavo import __version__
from octavo.errors import ConfigError
from octavo.server.app import create_app, engine_lifespan
from octavo.server.config import ServerConfig
from octavo.server.sse import event

MakeClient = Callable[..., httpx.AsyncClient]
BODY = {"model": "tiny", "prompt": "hi"}


async def test_models(client: httpx.AsyncClient) -> None:
    """Names have slashes; every served name is a model."""
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["org/tiny", "tiny"]
    one = (await client.get("/v1/models/org/tiny")).json()
    assert one == listed["data"][0]
    assert (one["object"], one["owned_by"], one["max_model_len"]) == ("model", "octavo", 64)
    assert isinstance(one["created"], int)


async def test_tokenize_and_back(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/tokenize", json={"model": "tiny", "prompt": "hé", "return_token_strs": True})).json()
    assert answer == {
        "count": 4,
        "max_model_len": 64,
        "tokens": [256, 104, 195, 169],
        "token_strs": ["<s>", "h", "\ufffd", "\ufffd"],
    }
    bare = {"prompt": "h", "add_special_tokens": False}
    assert (await client.post("/tokenize", json=bare)).json()["tokens"] == [104]
    chat = {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": False}
    answer = (await client.post("/tokenize", json=chat)).json()
    assert bytes(answer["tokens"]) == b"user: a\n"
    assert answer["token_strs"] is None
    assert (await client.post("/tokenize", json={"prompt": ""})).json()["count"] == 0
    assert (await client.post("/detokenize", json={"tokens": [256, 104, 195, 169]})).json() == {"prompt": "<s>hé"}


async def test_version_and_metrics(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await client.get("/version")).json() == {"version": __version__}
    engine.metrics.record_tokens(3)
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'vllm:generation_tokens_total{model_name="org/tiny"} 3.0' in answer.text


@pytest.mark.parametrize(
    ("state", "health", "ready"),
    [("starting", 200, 503), ("ready", 200, 200), ("draining", 200, 503), ("dead", 503, 503)],
)
async def test_health_and_readiness(
    client: httpx.AsyncClient, engine: FakeEngine, state: str, health: int, ready: int
) -> None:
    engine.state = Status(state, "because of the weather")
    answers = {path: await client.get(path) for path in ("/health", "/ready")}
    assert [answer.status_code for answer in answers.values()] == [health, ready]
    for answer in answers.values():
        if answer.status_code == 503:
            assert "because of the weather" in answer.json()["error"]["message"]
    for path, answer in answers.items():
        assert (await client.head(path)).status_code == answer.status_code
    refused = await client.post("/v1/completions", json=BODY)
    assert refused.status_code == ready
    if ready == 503:
        assert refused.json()["error"]["code"] == f"engine_{state}"
        assert refused.headers.get("retry-after") == (None if state == "dead" else "1")


async def test_models_are_listed_before_the_engine_is_ready(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.info, engine.state = None, Status("starting", "loading")
    assert (await client.get("/v1/models")).json()["data"][0]["max_model_len"] is None


async def test_api_keys(make_client: MakeClient, caplog: pytest.LogCaptureFixture) -> None:
    async with make_client(api_key=["sk-one", "sk-two"]) as client:
        for headers in (
            {},
            {"Authorization": "Bearer sk-three"},
            {"Authorization": "Bearer "},
            {"Authorization": "Bearer sk-on"},
            {"Authorization": "Basic sk-one"},
            {"Authorization": "Bearer \u00fcber"},
        ):
            encoded = {key: value.encode("latin-1") for key, value in headers.items()}
            for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("POST", "/tokenize")):
                answer = await client.request(method, path, headers=encoded, content=b"not even JSON")
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "sk-" not in answer.text
        for key in ("sk-one", "sk-two"):
            answer = await client.post("/v1/completions", json=BODY, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 200
        for path in ("/health", "/ready", "/version", "/metrics"):
            assert (await client.get(path)).status_code == 200
    assert "sk-" not in caplog.text


async def test_request_ids(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await client.post("/v1/completions", json=BODY, headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    again = await client.post("/v1/completions", json=BODY, headers={"X-Request-Id": "mine-1"})
    assert again.headers["x-request-id"] == "mine-1"
    # A client that repeats its id must not collide with itself in the engine.
    assert len({call.request_id for call in engine.calls}) == 2
    for bad in (b"x" * 129, b"with space", "ü".encode(), b""):
        new = (await client.get("/health", headers={"X-Request-Id": bad})).headers["x-request-id"]
        assert len(new) == 32


async def test_cors_only_where_asked(make_client: MakeClient) -> None:
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    async with make_client() as client:
        answer = await client.options("/v1/completions", headers=preflight)
        assert answer.status_code == 405
        assert "access-control-allow-origin" not in answer.headers
    async with make_client(allowed_origins=["https://a.example"], api_key="k") as client:
        answer = await client.options("/v1/completions", headers=preflight)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        answer = await client.options("/v1/completions", headers={**preflight, "Origin": "https://b.example"})
        assert answer.status_code == 400
        answer = await client.get("/v1/models", headers={"Origin": "https://a.example"})
        assert answer.status_code == 401
        assert answer.headers["access-control-allow-origin"] == "https://a.example"


async def test_mounted_under_another_prefix(engine: FakeEngine) -> None:
    """Adapters mount the app in their own: it must not care where it lives."""
    outer = FastAPI()
    outer.mount("/llm", create_app(engine, ServerConfig(api_key="k")))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://test") as client:
        assert (await client.get("/llm/health")).status_code == 200
        assert (await client.get("/llm/v1/models")).status_code == 401
        headers = {"Authorization": "Bearer k"}
        answer = await client.post("/llm/v1/completions", json={**BODY, "stream": True}, headers=headers)
        assert answer.status_code == 200
        assert answer.text.endswith("data: [DONE]\n\n")
        assert (await client.get("/llm/v1/nothing", headers=headers)).json()["error"]["code"] == "unknown_url"


async def test_lifespan_runs_the_engine(engine: FakeEngine) -> None:
    app = create_app(engine, lifespan=engine_lifespan(engine, drain_timeout=3))
    async with app.router.lifespan_context(app):
        assert engine.started
        assert not engine.stopped
    assert engine.drained == 3
    assert engine.stopped


async def test_openapi_describes_the_bodies(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    content = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]
    assert "max_completion_tokens" in content["application/json"]["schema"]["properties"]


def test_server_config() -> None:
    config = ServerConfig.from_sources({"port": 9000}, environ={"OCTAVO_API_KEY": "sk-secret", "OCTAVO_PORT": "1"})
    assert (config.host, config.port, config.api_key) == ("127.0.0.1", 9000, ["sk-secret"])
    assert "sk-secret" not in repr(config)
    with pytest.raises(ConfigError, match="did you mean 'port'"):
        ServerConfig(prt=1)
    for key in ("", "has space", "schlüssel", "line\nbreak"):
        with pytest.raises(ConfigError, match="api_key") as caught:
            ServerConfig(api_key=["sk-fine", key])
        assert "sk-fine" not in str(caught.value)


def test_an_event_is_one_line_of_json() -> None:
    assert event({"a": "ü\n"}) == 'data: {"a":"ü\\n"}\n\n'.encode()
