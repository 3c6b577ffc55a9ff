"""API keys: where they come from, that nobody sees them, and that their holders do not meet in the prefix cache."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.server.fake import FakeEngine

from octavo.errors import ConfigError
from octavo.server.app import create_app
from octavo.server.config import ServerConfig

MakeClient = Callable[..., httpx.AsyncClient]
BODY = {"model": "tiny", "prompt": "hi"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def key_file(path: Path, text: str, mode: int = 0o600) -> str:
    file = path / "keys"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


async def test_keys_of_a_file_and_of_flags_are_all_good(make_client: MakeClient, tmp_path: Path) -> None:
    path = key_file(tmp_path, "# ours\nsk-one\n\n  sk-two  \n")
    async with make_client(api_key=["sk-three"], api_key_file=path) as client:
        for key, status in {"sk-one": 200, "sk-two": 200, "sk-three": 200, "sk-four": 401, "# ours": 401}.items():
            assert (await client.post("/v1/completions", json=BODY, headers=headers(key))).status_code == status
        assert (await client.post("/v1/completions", json=BODY)).status_code == 401
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no key"),
        ("# none\n", "has no key"),
        ("sk-one\nsk two\n", "line 2 of .*printable ASCII without spaces"),
    ],
)
def test_a_file_without_usable_keys(engine: FakeEngine, tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        create_app(engine, ServerConfig(api_key_file=key_file(tmp_path, text)))
    assert "sk two" not in str(caught.value)
    assert caught.value.param == "api_key_file"


def test_a_file_that_is_not_there(engine: FakeEngine, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        create_app(engine, ServerConfig(api_key_file=str(tmp_path / "nothing")))


def test_a_file_that_others_can_read_is_warned_of(
    engine: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("octavo").propagate = True
    with caplog.at_level(logging.WARNING):
        create_app(engine, ServerConfig(api_key_file=key_file(tmp_path, "sk-secret\n", 0o644)))
    assert "chmod 600" in caplog.text
    assert "sk-secret" not in caplog.text


async def test_isolated_keys_have_salts_of_their_own(make_client: MakeClient, engine: FakeEngine) -> None:
    async with make_client(api_key=["sk-one", "sk-two"], isolate_api_keys=True) as client:
        for path, body in (("/v1/completions", BODY), ("/v1/chat/completions", CHAT)):
            engine.calls.clear()
            for key, salt in (("sk-one", None), ("sk-two", None), ("sk-one", None), ("sk-one", "a"), ("sk-two", "a")):
                given = {**body, "cache_salt": salt}
                assert (await client.post(path, json=given, headers=headers(key))).status_code == 200
            salts = [call.cache_salt for call in engine.calls]
            assert salts[0] == salts[2]
            assert len(set(salts)) == 4
            assert not any(salt is None or "sk-" in salt for salt in salts)


async def test_without_isolation_a_salt_is_the_clients_own(make_client: MakeClient, engine: FakeEngine) -> None:
    async with make_client(api_key="sk-one") as client:
        for salt in (None, "a"):
            await client.post("/v1/completions", json={**BODY, "cache_salt": salt}, headers=headers("sk-one"))
    assert [call.cache_salt for call in engine.calls] == [None, "a"]


def test_isolation_without_keys_is_a_mistake(engine: FakeEngine) -> None:
    with pytest.raises(ConfigError, match="isolate_api_keys needs keys"):
        create_app(engine, ServerConfig(isolate_api_keys=True))
