"""Whatever a client sends: a 4xx in OpenAI's error shape that names the field, and the engine is left alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.fake import FakeEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"model": "tiny", "prompt": "hi"},
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104]},
}


def check_shape(answer: httpx.Response) -> dict[str, Any]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert "\n" not in error["message"]
    assert len(error["message"]) < 500
    assert answer.headers["content-type"] == "application/json"
    assert "x-request-id" in answer.headers
    return dict(error)


COMMON: list[tuple[str, Any, str]] = [
    ("model", 5, "model"),
    ("model", None, "model"),
    ("model", "", "model"),
    ("temperature", -0.1, "temperature"),
    ("temperature", 2.1, "temperature"),
    ("temperature", "hot", "temperature"),
    ("temperature", True, "temperature"),
    ("temperature", 10**400, "temperature"),
    ("top_p", -0.1, "top_p"),
    ("top_p", 1.1, "top_p"),
    ("n", 0, "n"),
    ("n", 129, "n"),
    ("n", 1.0, "n"),
    ("n", "1", "n"),
    ("presence_penalty", 2.1, "presence_penalty"),
    ("frequency_penalty", -2.1, "frequency_penalty"),
    ("timeout", 0, "timeout"),
    ("timeout", "5", "timeout"),
    ("seed", 2**63, "seed"),
    ("seed", -(2**63) - 1, "seed"),
    ("seed", 1.5, "seed"),
    ("stop", ["a"] * 5, "stop"),
    ("stop", [1], "stop"),
    ("stop", "", "stop"),
    ("stop", {"a": 1}, "stop"),
    ("stop", "x" * 5000, "stop"),
    ("logit_bias", {"5": 101}, "logit_bias[5]"),
    ("logit_bias", {"x": 1}, "logit_bias"),
    ("logit_bias", {"-1": 1}, "logit_bias"),
    ("logit_bias", {"99999999999999": 1}, "logit_bias"),
    ("logit_bias", [5], "logit_bias"),
    ("logit_bias", {"5": "1"}, "logit_bias[5]"),
    ("max_tokens", -1, "max_tokens"),
    ("max_tokens", 2**70, "max_tokens"),
    ("max_tokens", "16", "max_tokens"),
    ("stream", "true", "stream"),
    ("stream", 1, "stream"),
    ("stream_options", {"include_usage": True}, "stream_options"),
    ("user", 5, "user"),
    ("user", None, "user"),
    ("top_k", -2, "top_k"),
    ("top_k", 2**70, "top_k"),
    ("min_p", 1.5, "min_p"),
    ("repetition_penalty", 0, "repetition_penalty"),
    ("min_tokens", -1, "min_tokens"),
    ("stop_token_ids", [-1], "stop_token_ids[0]"),
    ("stop_token_ids", [2**40], "stop_token_ids[0]"),
    ("bad_words", [""], "bad_words"),
    ("bad_words", "no", "bad_words"),
    ("ignore_eos", "yes", "ignore_eos"),
    ("priority", 2**70, "priority"),
    ("priority", 0.5, "priority"),
    ("cache_salt", "", "cache_salt"),
    ("cache_salt", 5, "cache_salt"),
    ("temprature", 1, "temprature"),
    ("guided_json", {}, "guided_json"),
]
OWN: list[tuple[str, str, Any, str]] = [
    (COMPLETIONS, "prompt", "", "prompt"),
    (COMPLETIONS, "prompt", None, "prompt"),
    (COMPLETIONS, "prompt", [], "prompt"),
    (COMPLETIONS, "prompt", [""], "prompt"),
    (COMPLETIONS, "prompt", [[]], "prompt"),
    (COMPLETIONS, "prompt", ["a", 1], "prompt"),
    (COMPLETIONS, "prompt", [True], "prompt"),
    (COMPLETIONS, "prompt", [[1], "a"], "prompt"),
    (COMPLETIONS, "prompt", [99999], "prompt"),
    (COMPLETIONS, "prompt", [2**70], "prompt"),
    (COMPLETIONS, "prompt", {"prompt": "a"}, "prompt"),
    (COMPLETIONS, "prompt", "x" * 64, "prompt"),
    (COMPLETIONS, "max_tokens", 62, "max_tokens"),
    (COMPLETIONS, "logprobs", 6, "logprobs"),
    (COMPLETIONS, "logprobs", True, "logprobs"),
    (COMPLETIONS, "best_of", 2, "best_of"),
    (COMPLETIONS, "best_of", 21, "best_of"),
    (COMPLETIONS, "suffix", "end", "suffix"),
    (COMPLETIONS, "echo", "yes", "echo"),
    (COMPLETIONS, "messages", [], "messages"),
    (COMPLETIONS, "min_tokens", 17, "min_tokens"),
    (CHAT, "messages", [], "messages"),
    (CHAT, "messages", None, "messages"),
    (CHAT, "messages", "hi", "messages"),
    (CHAT, "messages", [5], "messages[0]"),
    (CHAT, "messages", [{"role": "king", "content": "a"}], "messages[0].role"),
    (CHAT, "messages", [{"role": "tool", "content": "a"}], "messages[0].role"),
    (CHAT, "messages", [{"role": [], "content": "a"}], "messages[0].role"),
    (CHAT, "messages", [{"content": "a"}], "messages[0].role"),
    (CHAT, "messages", [{"role": "user"}], "messages[0].content"),
    (CHAT, "messages", [{"role": "user", "content": 5}], "messages[0].content"),
    (CHAT, "messages", [{"role": "user", "content": []}], "messages[0].content"),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content"),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content"),
    (CHAT, "messages", [{"role": "user", "content": [{"type": [], "text": ""}]}], "messages[0].content"),
    (CHAT, "messages", [{"role": "user", "content": "a", "contnt": "b"}], "messages[0].contnt"),
    (CHAT, "messages", [{"role": "assistant", "content": "a", "tool_calls": [{}]}], "messages[0].tool_calls"),
    (CHAT, "messages", [{"role": "user", "content": "x" * 64}], "messages"),
    (CHAT, "max_tokens", 0, "max_tokens"),
    (CHAT, "max_completion_tokens", 0, "max_completion_tokens"),
    (CHAT, "logprobs", 5, "logprobs"),
    (CHAT, "top_logprobs", 2, "top_logprobs"),
    (CHAT, "top_logprobs", 21, "top_logprobs"),
    (CHAT, "tools", [{"type": "function"}], "tools"),
    (CHAT, "tool_choice", "auto", "tool_choice"),
    (CHAT, "functions", [], "functions"),
    (CHAT, "response_format", {"type": "json_object"}, "response_format"),
    (CHAT, "modalities", ["audio"], "modalities"),
    (CHAT, "audio", {"voice": "x"}, "audio"),
    (CHAT, "store", True, "store"),
    (CHAT, "metadata", {"k" * 65: "v"}, None),
    (CHAT, "metadata", {str(i): "v" for i in range(17)}, "metadata"),
    (CHAT, "chat_template_kwargs", [], "chat_template_kwargs"),
    (CHAT, "chat_template_kwargs", {"messages": []}, "chat_template_kwargs"),
    (CHAT, "prompt", "hi", "prompt"),
    ("/tokenize", "prompt", 5, "prompt"),
    ("/tokenize", "messages", [{"role": "user", "content": "a"}], "prompt"),
    ("/tokenize", "model", "other", "model"),
    ("/detokenize", "tokens", [-1], "tokens[0]"),
    ("/detokenize", "tokens", [258], "tokens"),
    ("/detokenize", "tokens", "a", "tokens"),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", [(path, *case) for path in (COMPLETIONS, CHAT) for case in COMMON] + OWN, ids=lambda case: f"{case[:2]}"
)
async def test_the_field_is_named(
    client: httpx.AsyncClient, engine: FakeEngine, case: tuple[str, str, Any, str | None]
) -> None:
    path, field, value, param = case
    body = json.dumps({**GOOD[path], field: value})
    answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == (404 if param == "model" and value == "other" else 400), answer.text
    error = check_shape(answer)
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
        assert param.split("[")[0].split(".")[0] in error["message"] or "prompt" in error["message"]
    assert engine.calls == []


@pytest.mark.parametrize("path", GOOD)
async def test_required_fields(client: httpx.AsyncClient, path: str) -> None:
    error = check_shape(await client.post(path, json={}))
    assert error["code"] in ("missing_required_parameter", "invalid_value")
    assert error["param"] in ("model", "prompt", "tokens")


async def test_hints(client: httpx.AsyncClient) -> None:
    for path, name, hint in (
        (CHAT, "temprature", "temperature"),
        (CHAT, "max_completion_token", "max_completion_tokens"),
        (COMPLETIONS, "promt", "prompt"),
    ):
        error = check_shape(await client.post(path, json={**GOOD[path], name: 1}))
        assert error["code"] == "unknown_parameter"
        assert f"did you mean '{hint}'?" in error["message"]
    options = {"stream": True, "stream_options": {"include_usag": True}}
    error = check_shape(await client.post(CHAT, json={**GOOD[CHAT], **options}))
    assert "did you mean 'include_usage'?" in error["message"]
    assert error["param"] == "stream_options.include_usag"


async def test_both_numbers_are_said(client: httpx.AsyncClient) -> None:
    error = check_shape(await client.post(COMPLETIONS, json={**GOOD[COMPLETIONS], "max_tokens": 63}))
    assert error["code"] == "context_length_exceeded"
    for number in ("3 tokens", "63", "66", "64 tokens"):
        assert number in error["message"]


async def test_fields_that_contradict_each_other(client: httpx.AsyncClient) -> None:
    for fields, param in (
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"min_tokens": 5, "max_completion_tokens": 4}, "min_tokens"),
        ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ):
        answer = await client.post(CHAT, json={**GOOD[CHAT], **fields})
        assert answer.status_code == 400
        assert check_shape(answer)["param"] == param


async def test_unknown_model(client: httpx.AsyncClient) -> None:
    for path in (COMPLETIONS, CHAT):
        answer = await client.post(path, json={**GOOD[path], "model": "gpt-9"})
        assert answer.status_code == 404
        error = check_shape(answer)
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert "'org/tiny'" in error["message"]


BAD_BODIES: list[bytes] = [
    b"",
    b"   ",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"5",
    b"{'model': 'tiny'}",
    b'{"model": "tiny", "prompt": "\xff\xfe"}',
    b'{"model": "tiny", "prompt": "\xed\xa0\x80"}',
    b'{"model": "tiny", "prompt": "\\ud800"}',
    b'{"model": "tiny", "prompt": "\\udc00\\ud800"}',
    b'{"model": "tiny", "prompt": "a", "logit_bias": {"\\udc00": 1}}',
    b'{"model": "tiny", "prompt": "a", "temperature": NaN}',
    b'{"model": "tiny", "prompt": "a", "temperature": Infinity}',
    b'{"model": "tiny", "prompt": "a", "temperature": -Infinity}',
    b'{"model": "tiny", "prompt": "a", "temperature": 1e999}',
    b'{"model": "tiny", "prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    b'{"model": "tiny", "prompt": "a", "prompt": "b"}',
    b'{"model": "tiny", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"model": "tiny", "prompt": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    b'{"model": "tiny", "prompt": ' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"model": "tiny", "prompt": "a"} trailing',
    b'{"model": "tiny", "prompt": "a\nb"}',
    '{"model": "tiny", "prompt": "a"}'.encode("utf-16"),
    b"\x00" * 100,
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
async def test_bodies_that_are_not_json(client: httpx.AsyncClient, engine: FakeEngine, body: bytes) -> None:
    for path in GOOD:
        answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, answer.text
        check_shape(answer)
    assert engine.calls == []


async def test_a_byte_order_mark_and_pairs_of_surrogates_are_told_apart(client: httpx.AsyncClient) -> None:
    body = b'{"model": "tiny", "prompt": "\\ud83d\\ude00", "max_tokens": 1}'
    answer = await client.post(COMPLETIONS, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200


async def test_media_types(client: httpx.AsyncClient) -> None:
    body = json.dumps(GOOD[CHAT]).encode()
    for headers, status in (
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "application/problem+json"}, 200),
        ({}, 200),
    ):
        answer = await client.post(CHAT, content=body, headers=headers)
        assert answer.status_code == status
        if status != 200:
            check_shape(answer)


async def test_bodies_too_large(make_client: Callable[..., httpx.AsyncClient]) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * 500

    async with make_client(max_request_bytes=2000) as client:
        for content in (b" " * 2001, chunks()):
            answer = await client.post(CHAT, content=content, headers={"Content-Type": "application/json"})
            assert answer.status_code == 413
            assert "2000 bytes" in check_shape(answer)["message"]
        assert (await client.post(CHAT, json=GOOD[CHAT])).status_code == 200


async def test_too_many_choices(make_client: Callable[..., httpx.AsyncClient]) -> None:
    async with make_client(max_choices=4) as client:
        body = {"model": "tiny", "prompt": ["a"] * 3, "n": 2}
        error = check_shape(await client.post(COMPLETIONS, json=body))
        assert "6" in error["message"]
        assert "4" in error["message"]


async def test_routes_and_methods(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/chat/completion")
    assert (answer.status_code, check_shape(answer)["code"]) == (404, "unknown_url")
    answer = await client.get(CHAT)
    assert (answer.status_code, check_shape(answer)["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    answer = await client.post("/v1/chat/completions/", json=GOOD[CHAT])
    assert answer.status_code == 404
    check_shape(answer)
    answer = await client.get("/v1/models/nobody/nothing")
    assert (answer.status_code, check_shape(answer)["code"]) == (404, "model_not_found")


_FIELDS = (
    "model", "prompt", "messages", "temperature", "n", "stop", "logit_bias", "max_tokens", "stream", "logprobs", "echo",
    "stream_options", "seed", "tools", "metadata", "chat_template_kwargs", "top_logprobs", "tokens", "priority",
)  # fmt: skip
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(path=st.sampled_from(list(GOOD)), fields=st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=3))
async def test_nothing_makes_a_500(client: httpx.AsyncClient, path: str, fields: dict[str, Any]) -> None:
    body = json.dumps({**GOOD[path], **fields})
    answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400, 404)
    if answer.status_code != 200:
        check_shape(answer)
