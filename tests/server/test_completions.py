from __future__ import annotations

import httpx
import pytest
from tests.server import sse
from tests.server.fake import ByteTokenizer, FakeEngine

from octavo.outputs import Logprob
from octavo.server.logprobs import CompletionLogprobs

URL = "/v1/completions"


async def ask(client: httpx.AsyncClient, **body: object) -> dict[str, object]:
    answer = await client.post(URL, json={"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


async def stream(client: httpx.AsyncClient, **body: object) -> list[dict[str, object]]:
    answer = await client.post(URL, json={"model": "tiny", "stream": True, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events, done = sse.parse(answer.text)
    assert done
    return events


async def test_the_whole_answer(client: httpx.AsyncClient) -> None:
    answer = await ask(client, prompt="abc")
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["model"] == "org/tiny"
    assert answer["system_fingerprint"].startswith("fp_")
    assert answer["choices"] == [{"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 7,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


async def test_sixteen_tokens_unless_asked(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.text = "x" * 40
    answer = await ask(client, prompt="abc", max_tokens=None)
    assert answer["choices"][0]["text"] == "x" * 16
    assert answer["choices"][0]["finish_reason"] == "length"
    assert (await ask(client, prompt="abc", max_tokens=20))["choices"][0]["text"] == "x" * 20


async def test_the_four_forms_of_prompt(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    for prompt in ("ab", ["ab", "c"], [97, 98], [[97, 98], [99]]):
        await ask(client, prompt=prompt)
    given = [(call.prompt["prompt_token_ids"], call.prompt["prompt"]) for call in engine.calls]
    assert given == [
        ([256, 97, 98], "ab"),
        ([256, 97, 98], "ab"),
        ([256, 99], "c"),
        ([97, 98], None),
        ([97, 98], None),
        ([99], None),
    ]
    await ask(client, prompt="ab", add_special_tokens=False)
    assert engine.calls[-1].prompt["prompt_token_ids"] == [97, 98]


async def test_choices_count_through_prompts_and_n(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await ask(client, prompt=["a", "bb"], n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 6 * 7
    assert len({call.request_id for call in engine.calls}) == 2


async def test_every_sampling_field_arrives(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await ask(
        client, prompt="a", temperature=0.5, top_p=0, presence_penalty=-2, frequency_penalty=2, seed=-(2**63), n=2,
        logit_bias={"97": -100, "98": 1.5}, stop="\n", top_k=5, min_p=0.1, repetition_penalty=1.5, ignore_eos=True,
        min_tokens=2, stop_token_ids=[3], bad_words=["no"], include_stop_str_in_output=True, skip_special_tokens=False,
        priority=-3, cache_salt="salt", max_tokens=9, best_of=2, user="me",
    )  # fmt: skip
    call = engine.calls[0]
    assert call.params.model_dump(exclude_defaults=True) == {
        "n": 2, "temperature": 0.5, "top_k": 5, "top_p": 1e-9, "min_p": 0.1, "repetition_penalty": 1.5,
        "presence_penalty": -2.0, "frequency_penalty": 2.0, "logit_bias": {97: -100.0, 98: 1.5}, "seed": -(2**63),
        "stop": ["\n"], "stop_token_ids": [3], "bad_words": ["no"], "min_tokens": 2, "max_tokens": 9,
        "ignore_eos": True, "include_stop_str_in_output": True, "skip_special_tokens": False,
    }  # fmt: skip
    assert (call.priority, call.cache_salt) == (-3, "salt")


async def test_null_is_the_default(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    nullable = (
        "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty", "seed",
        "stop", "stream", "stream_options", "suffix", "temperature", "top_p", "top_k", "min_p", "ignore_eos",
    )  # fmt: skip
    await ask(client, prompt="a", **dict.fromkeys(nullable))
    assert engine.calls[0].params.model_dump(exclude_defaults=True) == {"max_tokens": 16}


async def test_stream(client: httpx.AsyncClient) -> None:
    events = await stream(client, prompt="abc")
    assert {event["id"] for event in events} == {events[0]["id"]}
    assert all(event["object"] == "text_completion" and "usage" not in event for event in events)
    assert [event["choices"][0]["text"] for event in events] == [*"Hello!", ""]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 6 + ["stop"]


async def test_stream_with_usage(client: httpx.AsyncClient) -> None:
    events = await stream(client, prompt="abc", max_tokens=2, stream_options={"include_usage": True})
    assert [event["usage"] for event in events[:-1]] == [None, None]
    assert events[-1]["choices"] == []
    assert (events[-1]["usage"]["prompt_tokens"], events[-1]["usage"]["completion_tokens"]) == (4, 2)


async def test_streams_of_many_prompts_are_merged(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    """They run at once: one after the other would show the first prompt's end before the last one's beginning."""
    engine.pause = 0.001
    events = await stream(client, prompt=["a", "b", "c"], n=2)
    texts: dict[int, str] = {}
    order = []
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        order.append(choice["index"])
    assert texts == dict.fromkeys(range(6), "Hello!")
    assert set(order[:12]) == set(range(6))


async def test_no_empty_deltas_and_whole_characters(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.text = "é💩"
    events = await stream(client, prompt="abc")
    assert [event["choices"][0]["text"] for event in events] == ["é", "💩", ""]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("streamed", [False, True])
async def test_logprobs(client: httpx.AsyncClient, engine: FakeEngine, streamed: bool) -> None:
    """Both ways give the same arrays; a token without text of its own waits for the text it belongs to."""
    engine.text = "aé"
    if streamed:
        shares = [event["choices"][0]["logprobs"] for event in await stream(client, prompt="abc", logprobs=2)]
        assert [len(share["tokens"]) for share in shares] == [1, 2, 1]
        logprobs = {key: [item for share in shares for item in share[key]] for key in shares[0]}
    else:
        logprobs = (await ask(client, prompt="abc", logprobs=2))["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "</s>"],
        "token_logprobs": [-1.0] * 4,
        "top_logprobs": [{"X": -0.5, token: -1.0} for token in ("a", "bytes:\\xc3", "bytes:\\xa9", "</s>")],
        "text_offset": [0, 1, 1, 2],
    }


async def test_logprobs_zero_gives_the_chosen_token_alone(client: httpx.AsyncClient) -> None:
    logprobs = (await ask(client, prompt="abc", logprobs=0, max_tokens=1))["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"H": -1.0}]


async def test_the_chosen_token_comes_on_top_of_the_likeliest(client: httpx.AsyncClient) -> None:
    """logprobs=1: the likeliest is X, so there are two, as OpenAI's reference says (logprobs + 1)."""
    logprobs = (await ask(client, prompt="abc", logprobs=1, max_tokens=1))["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"X": -0.5, "H": -1.0}]


async def test_minus_infinity_is_json(client: httpx.AsyncClient) -> None:
    logprobs = (await ask(client, prompt="abc", logprobs=4, max_tokens=1))["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"][0]["Z"] == -9999.0


@pytest.mark.parametrize("streamed", [False, True])
async def test_echo_with_logprobs(client: httpx.AsyncClient, streamed: bool) -> None:
    body = {"prompt": "hé", "echo": True, "logprobs": 1, "max_tokens": 2, "n": 2}
    if streamed:
        parts = [event["choices"][0] for event in await stream(client, **body)]
        parts = [part for part in parts if part["index"] == 1]
        text = "".join(part["text"] for part in parts)
        logprobs = {key: [item for part in parts for item in part["logprobs"][key]] for key in parts[0]["logprobs"]}
    else:
        choice = (await ask(client, **body))["choices"][1]
        text, logprobs = choice["text"], choice["logprobs"]
    assert text == "héHe"
    assert logprobs["tokens"] == ["<s>", "h", "bytes:\\xc3", "bytes:\\xa9", "H", "e"]
    assert logprobs["token_logprobs"] == [None, -1, -1, -1, -1, -1]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"] == [0, 0, 1, 1, 2, 3]


async def test_echo_of_token_ids(client: httpx.AsyncClient) -> None:
    assert (await ask(client, prompt=[256, 97, 98], echo=True, max_tokens=1))["choices"][0]["text"] == "abH"


async def test_max_tokens_zero_scores_the_prompt(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await ask(client, prompt="ab", echo=True, logprobs=1, max_tokens=0)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["tokens"] == ["<s>", "a", "b"]
    assert answer["usage"]["completion_tokens"] == 0
    assert engine.calls[0].params.max_tokens == 1
    (event,) = await stream(client, prompt="ab", max_tokens=0)
    assert event["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]


async def test_without_a_tokenizer(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.tokenizer = None
    await ask(client, prompt=[1, 2])
    assert not engine.calls[0].params.detokenize
    answer = await client.post(URL, json={"model": "tiny", "prompt": "abc"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


async def test_special_tokens_that_are_not_shown_take_no_room(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    class EndInTheMiddle(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            return b"</s>" if token_id == ord("l") else super().token_bytes(token_id)

        def is_special(self, token_id: int) -> bool:
            return token_id == ord("l")

    engine.tokenizer = EndInTheMiddle()
    logprobs = (await ask(client, prompt="a", logprobs=0, max_tokens=5))["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 1, 2, 2, 2]


def test_offsets_past_a_character_that_was_never_finished() -> None:
    """U+FFFD was counted late, so that the token after it seemed to lie on it."""
    logprobs = CompletionLogprobs(0, None, True)
    tokens = {1: b"\xe2\x82", 2: b"a", 3: b"\xe2", 4: b"\x82\xac", 5: b"b"}
    positions = [{token_id: Logprob(-1.0, 1, None, data)} for token_id, data in tokens.items()]
    assert logprobs.generated(list(tokens), positions)["text_offset"] == [0, 1, 2, 2, 3]
