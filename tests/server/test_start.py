from __future__ import annotations

import json
import shlex
import socket

import pytest
from tests.server.fake import FakeEngine

from octavo.errors import ConfigError
from octavo.server.banner import banner
from octavo.server.config import ServerConfig
from octavo.server.listen import listen


def curl_body(text: str) -> dict[str, object]:
    words = shlex.split(text.split("\n\n")[1])
    assert words[0] == "curl"
    found: dict[str, object] = json.loads(words[words.index("-d") + 1])
    return found


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8123"),
        ("0.0.0.0", "http://127.0.0.1:8123"),
        ("::", "http://[::1]:8123"),
        ("example.org", "http://example.org:8123"),
    ],
)
def test_the_examples_point_at_the_server(engine: FakeEngine, host: str, url: str) -> None:
    text = banner(engine, ServerConfig(host=host), 8123)
    assert f"serves org/tiny at {url}/v1" in text
    assert f"curl {url}/v1/chat/completions " in text
    assert curl_body(text)["model"] == "org/tiny"
    compile(text.split("\n\n")[2], "snippet", "exec")


def test_the_examples_suit_the_model(engine: FakeEngine) -> None:
    assert engine.tokenizer is not None
    engine.tokenizer.has_chat_template = False
    assert isinstance(curl_body(banner(engine, ServerConfig(), 1))["prompt"], str)
    engine.tokenizer = None
    assert curl_body(banner(engine, ServerConfig(), 1))["prompt"] == [1]


def test_keys_and_odd_names_in_the_examples(engine: FakeEngine) -> None:
    engine.config = engine.config.model_copy(update={"served_model_name": ['it\'s "odd" $HOME']})
    text = banner(engine, ServerConfig(api_key="sk-secret"), 1)
    assert "sk-secret" not in text
    assert "$OCTAVO_API_KEY" in text
    assert "os.environ['OCTAVO_API_KEY']" in text
    assert curl_body(text)["model"] == 'it\'s "odd" $HOME'
    compile(text.split("\n\n")[2], "snippet", "exec")


def test_listening() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: address already in use.*--port"):
            listen("127.0.0.1", port)
    # A server that has just ended leaves connections in TIME_WAIT: its port can be had again at once.
    listen("127.0.0.1", port).close()
    with pytest.raises(ConfigError, match="--host"):
        listen("no.such.host.invalid", 0)
