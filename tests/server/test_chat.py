from __future__ import annotations

import httpx
import pytest
from tests.server import sse
from tests.server.fake import FakeEngine

from octavo.errors import EngineDeadError, RequestError

URL = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


async def ask(client: httpx.AsyncClient, **body: object) -> dict[str, object]:
    answer = await client.post(URL, json={"model": "tiny", "messages": HI, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


async def stream(client: httpx.AsyncClient, **body: object) -> list[dict[str, object]]:
    answer = await client.post(URL, json={"model": "tiny", "messages": HI, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    events, done = sse.parse(answer.text)
    assert done
    return events


async def test_the_whole_answer(client: httpx.AsyncClient) -> None:
    answer = await ask(client)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"]["prompt_tokens"] == len("user: hi\nA:")
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


async def test_the_template_alone_makes_the_prompt(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    """No special tokens are added to what the template wrote; all the room left may be used."""
    await ask(client)
    assert engine.calls[0].prompt == {"prompt_token_ids": list(b"user: hi\nA:"), "prompt": "user: hi\nA:"}
    assert engine.calls[0].params.max_tokens is None


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_both_names_of_the_limit(client: httpx.AsyncClient, field: str) -> None:
    answer = await ask(client, **{field: 2})
    assert answer["choices"][0]["message"]["content"] == "He"
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_messages_in_every_form(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    messages = [
        {"role": "developer", "content": "d"},
        {"role": "system", "content": [{"type": "text", "text": "s1"}, {"type": "text", "text": "s2"}]},
        {"role": "assistant", "content": None, "refusal": "no", "tool_calls": None, "annotations": [], "audio": None},
        {"role": "user", "content": "u", "name": "ann"},
    ]
    await ask(client, messages=messages)
    assert engine.calls[0].prompt["prompt"] == "system: d\nsystem: s1\ns2\nassistant: no\nuser: u\nA:"


async def test_ways_to_end_the_prompt(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await ask(client, add_generation_prompt=False)
    await ask(client, continue_final_message=True)
    await ask(client, chat_template_kwargs={"thinking": True})
    texts = [call.prompt["prompt"] for call in engine.calls]
    assert texts == ["user: hi\n", "user: hi", "user: hi\n[thinking=True]A:"]


async def test_stream_begins_with_the_role_and_ends_with_the_reason(client: httpx.AsyncClient) -> None:
    events = await stream(client)
    assert all(event["object"] == "chat.completion.chunk" for event in events)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert deltas[1:-1] == [{"content": letter} for letter in "Hello!"]
    assert deltas[-1] == {}
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 7 + ["stop"]


async def test_stream_of_several_choices(client: httpx.AsyncClient) -> None:
    events = await stream(client, n=3, stream_options={"include_usage": True})
    usage = events.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 21
    seen: dict[int, list[dict[str, str]]] = {}
    for event in events:
        assert event["usage"] is None
        (choice,) = event["choices"]
        seen.setdefault(choice["index"], []).append(choice["delta"])
    assert sorted(seen) == [0, 1, 2]
    for deltas in seen.values():
        assert "role" in deltas[0]
        assert "".join(delta.get("content", "") for delta in deltas) == "Hello!"


@pytest.mark.parametrize("streamed", [False, True])
async def test_logprobs(client: httpx.AsyncClient, engine: FakeEngine, streamed: bool) -> None:
    engine.text = "é"
    if streamed:
        events = await stream(client, logprobs=True, top_logprobs=2)
        shares = [event["choices"][0]["logprobs"] for event in events]
        assert shares[0] is None
        assert [len(share["content"]) for share in shares[1:]] == [2, 1]
        content = [entry for share in shares[1:] for entry in share["content"]]
    else:
        logprobs = (await ask(client, logprobs=True, top_logprobs=2))["choices"][0]["logprobs"]
        assert logprobs["refusal"] is None
        content = logprobs["content"]
    assert content[0] == {
        "token": "\\xc3",
        "logprob": -1.0,
        "bytes": [0xC3],
        "top_logprobs": [
            {"token": "X", "logprob": -0.5, "bytes": [88]},
            {"token": "\\xc3", "logprob": -1.0, "bytes": [0xC3]},
        ],
    }
    assert [entry["token"] for entry in content] == ["\\xc3", "\\xa9", "</s>"]


async def test_top_logprobs_are_the_likeliest_whatever_was_chosen(client: httpx.AsyncClient) -> None:
    """The chosen token is second in rank: one top logprob is not it."""
    answer = await ask(client, logprobs=True, top_logprobs=1, max_tokens=1)
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert entry["token"] == "H"
    assert [top["token"] for top in entry["top_logprobs"]] == ["X"]


async def test_logprobs_without_top(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await ask(client, logprobs=True, max_tokens=1)
    assert answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert engine.calls[0].params.logprobs == 0


async def test_harmless_fields_of_openai_are_taken(client: httpx.AsyncClient) -> None:
    await ask(
        client, user="u", metadata={"a": "b"}, store=False, service_tier="auto", parallel_tool_calls=True,
        prompt_cache_key="k", safety_identifier="s", response_format={"type": "text"}, modalities=["text"],
        verbosity="medium", tools=None, audio=None, prediction=None, stream_options=None, reasoning_effort=None,
    )  # fmt: skip


async def test_a_stream_that_breaks_ends_with_an_error_event(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.error, engine.error_after = EngineDeadError("the core died"), 2
    answer = await client.post(URL, json={"model": "tiny", "messages": HI, "stream": True})
    assert answer.status_code == 200
    events, done = sse.parse(answer.text)
    assert not done
    assert events[-1] == {
        "error": {"message": "the core died", "type": "server_error", "param": None, "code": "engine_dead"}
    }
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1]) == "He"


async def test_an_answer_that_breaks_is_an_error(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.error, engine.error_after = EngineDeadError("the core died"), 2
    answer = await client.post(URL, json={"model": "tiny", "messages": HI})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refusal_of_the_engine_keeps_its_status(
    client: httpx.AsyncClient, engine: FakeEngine, streamed: bool
) -> None:
    """A stream's headers wait for the first output, so a refusal by the core is still a 400; `prompt` is `messages`."""
    engine.error = RequestError("does not fit", "prompt", "kv_cache_too_small")
    answer = await client.post(URL, json={"model": "tiny", "messages": HI, "stream": streamed})
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "does not fit",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "kv_cache_too_small",
    }


async def test_a_bug_is_told_without_its_details(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.error, engine.error_after = ZeroDivisionError("secret"), 1
    answer = await client.post(URL, json={"model": "tiny", "messages": HI, "stream": True})
    events, done = sse.parse(answer.text)
    assert not done
    assert events[-1]["error"]["code"] == "internal_error"
    assert "secret" not in answer.text


async def test_unicode_line_breaks_do_not_break_events(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    """Clients that split lines as str.splitlines does cut an event in two at U+2028 or U+0085."""
    engine.text = "a\u2028b\u2029c\x85d\x1ee\r\nf"
    answer = await client.post(URL, json={"model": "tiny", "messages": HI, "stream": True})
    assert answer.text.splitlines() == answer.text[:-1].split("\n")
    events, _ = sse.parse(answer.text)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == engine.text


async def test_no_template(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert engine.tokenizer is not None
    engine.tokenizer.has_chat_template = False
    answer = await client.post(URL, json={"model": "tiny", "messages": HI})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
