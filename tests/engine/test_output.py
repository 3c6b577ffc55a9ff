"""From tokens to outputs: stop strings across every split, endings, logprobs, n sequences, deltas and wholes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.request import SequenceOutput
from octavo.core.step import TokenLogprobs
from octavo.engine.output import RequestAssembler
from octavo.engine.stop_strings import Stop, StopStrings
from octavo.outputs import FinishReason, RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.text.tokenizer import Tokenizer
from tests.tiny import EOS, build_tokenizer

TOKENIZER = Tokenizer(build_tokenizer(), specials={}, bos_token_id=None, eos_token_id=EOS, chat_template=None)
BYTES = {TOKENIZER.token_bytes(i): i for i in range(3, 259)}


def ids(text: str) -> list[int]:
    """One token a byte."""
    return [BYTES[bytes([byte])] for byte in text.encode()]


def completed_first(text: str, stops: list[str], min_tokens: int = 0) -> tuple[int, int, str] | None:
    """(end, start, string) of the stop string that is completed first, by trying every end that a token after the first
    `min_tokens` completes."""
    for end in range(1, len(text) + 1):
        if len(text[:end].encode()) <= min_tokens:
            continue
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return end, end - len(longest), longest
    return None


@given(
    st.text(alphabet="abc", max_size=14),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 14)),
    st.booleans(),
)
@settings(max_examples=600, deadline=None)
def test_stop_strings_across_every_split(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    scanner = StopStrings(stops, include=include)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    given_out, ended = "", None
    for start, end in pairwise(bounds):
        piece = scanner.push(text[start:end])
        if isinstance(piece, Stop):
            given_out += piece.text
            ended = piece.string
            break
        given_out += piece
    else:
        given_out += scanner.flush()
    want = completed_first(text, stops)
    if want is None:
        assert (given_out, ended) == (text, None)
    else:
        stop_end, stop_start, string = want
        assert (given_out, ended) == (text[: stop_end if include else stop_start], string)


def run(
    params: SamplingParams,
    steps: list[list[int]],
    *,
    delta: bool,
    finish: FinishReason | None = "length",
    logprobs: bool = False,
) -> tuple[list[RequestOutput], RequestAssembler, list[int]]:
    """Feeds one sequence; returns the outputs, the assembler, and the indices it wanted aborted."""
    assembler = RequestAssembler("r", "p", [5, 6], params, TOKENIZER, 0.0, delta=delta)
    outputs, stopped = [], []
    for number, tokens in enumerate(steps):
        last = number == len(steps) - 1
        output = SequenceOutput("r", 0, tokens, finish_reason=finish if last else None)
        if logprobs:
            output.logprobs = [TokenLogprobs([token, 9], [-0.5, -0.1], 3) for token in tokens]
        update = assembler.feed([output], float(number))
        stopped += update.stopped
        if update.output is not None:
            outputs.append(update.output)
    return outputs, assembler, stopped


@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
def test_a_stop_string_in_the_text(delta: bool, include: bool, size: int) -> None:
    text = "one 世 STOP two"
    tokens = ids(text)
    steps = [tokens[i : i + size] for i in range(0, len(tokens), size)]
    params = SamplingParams(stop=["STOP", "never"], include_stop_str_in_output=include, max_tokens=99)
    outputs, assembler, stopped = run(params, steps, delta=delta)
    assert "".join(one.outputs[0].text for one in outputs) == "one 世 STOP"[: None if include else -4]
    last = outputs[-1]
    assert last.finished
    assert (last.outputs[0].finish_reason, last.outputs[0].stop_reason) == ("stop", "STOP")
    # The tokens go up to the one that completed the string, and no further.
    assert [token for one in outputs for token in one.outputs[0].token_ids] == ids("one 世 STOP")
    assert assembler.num_output_tokens == len(ids("one 世 STOP"))
    # The core must be told, unless it has ended the sequence with these very tokens.
    assert stopped == ([0] if size < 20 else [])


@given(
    st.text(alphabet="ab世", max_size=10),
    st.lists(st.text(alphabet="ab世", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(1, 5)),
    st.integers(0, 6),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_stop_strings_in_tokens(
    text: str, stops: list[str], sizes: list[int], min_tokens: int, include: bool, delta: bool
) -> None:
    """One byte a token, any number of tokens a step, streaming or not, may end from the start or not."""
    tokens, steps = ids(text), []
    for size in [*sizes, *tokens]:
        steps.append(tokens[sum(map(len, steps)) :][:size])
    params = SamplingParams(stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens, max_tokens=99)
    outputs, _, _ = run(params, [step for step in steps if step], delta=delta)
    want = completed_first(text, stops, min_tokens)
    joined = "".join(one.outputs[0].text for one in outputs)
    token_ids = [token for one in outputs for token in one.outputs[0].token_ids]
    if want is None:
        assert (joined, token_ids) == (text, tokens)
        return
    end, start, string = want
    assert joined == text[: end if include else start]
    assert token_ids == ids(text[:end])
    assert (outputs[-1].outputs[0].finish_reason, outputs[-1].outputs[0].stop_reason) == ("stop", string)


def test_a_stop_string_may_begin_before_min_tokens() -> None:
    """What was generated before min_tokens had been given out already and was forgotten: a stop string that began there
    was never found."""
    params = SamplingParams(stop="STOP", min_tokens=4, max_tokens=9)
    outputs, _, _ = run(params, [[token] for token in ids("aSTOPb")], delta=True)
    assert "".join(one.outputs[0].text for one in outputs) == "a"
    assert outputs[-1].num_output_tokens == 5


@pytest.mark.parametrize(("text", "want"), [("aabcab", "aabc"), ("abcda", "abcd"), ("abca", "abca")])
def test_no_stop_string_in_the_first_min_tokens(text: str, want: str) -> None:
    """As vLLM, and as for end-of-sequence here: the first that may end the text is the token after them."""
    params = SamplingParams(stop="a", min_tokens=4, max_tokens=9)
    outputs, _, _ = run(params, [[token] for token in ids(text)], delta=False)
    assert outputs[0].outputs[0].text == want


def test_held_back_text_comes_out_when_the_sequence_ends() -> None:
    params = SamplingParams(stop="STOP", max_tokens=9)
    outputs, _, _ = run(params, [[token] for token in ids("a STO")], delta=True)
    assert [one.outputs[0].text for one in outputs] == ["a", " ", "", "", "STO"]


def test_half_a_character_at_the_end() -> None:
    outputs, _, _ = run(SamplingParams(), [ids("a"), ids("世")[:2]], delta=True)
    assert [one.outputs[0].text for one in outputs] == ["a", "�"]


@pytest.mark.parametrize(("include", "special", "text"), [(False, True, "ab"), (True, False, "ab<|im_end|>")])
def test_the_token_that_stopped_it(include: bool, special: bool, text: str) -> None:
    params = SamplingParams(include_stop_str_in_output=include, skip_special_tokens=special)
    outputs, _, _ = run(params, [ids("a"), ids("b"), [EOS]], delta=False, finish="stop")
    assert outputs[0].outputs[0].text == text
    assert outputs[0].outputs[0].token_ids == [*ids("ab"), EOS]
    assert outputs[0].outputs[0].stop_reason is None


@given(
    st.lists(st.integers(0, 300), max_size=30), st.lists(st.integers(1, 4)), st.sampled_from([[], ["qu"], ["o", "the"]])
)
@settings(max_examples=150, deadline=None)
def test_joined_deltas_equal_the_whole(tokens: list[int], sizes: list[int], stop: list[str]) -> None:
    steps, start = [], 0
    for size in [*sizes, len(tokens)]:
        if start < len(tokens):
            steps.append(tokens[start : start + size])
            start += size
    params = SamplingParams(stop=stop, logprobs=1)
    deltas, _, _ = run(params, steps, delta=True, logprobs=True)
    wholes, _, _ = run(params, steps, delta=False, logprobs=True)
    if not steps:
        assert deltas == wholes == []
        return
    whole = wholes[0].outputs[0]
    parts = [one.outputs[0] for one in deltas]
    assert len(wholes) == 1
    assert "".join(part.text for part in parts) == whole.text
    assert [token for part in parts for token in part.token_ids] == whole.token_ids
    assert [entry for part in parts for entry in part.logprobs or []] == whole.logprobs
    assert parts[-1].cumulative_logprob == whole.cumulative_logprob == pytest.approx(-0.5 * len(whole.token_ids))
    assert (parts[-1].finish_reason, parts[-1].stop_reason) == (whole.finish_reason, whole.stop_reason)
    assert deltas[-1].num_output_tokens == wholes[0].num_output_tokens == len(whole.token_ids)


def test_logprobs_name_the_chosen_token_first() -> None:
    outputs, _, _ = run(SamplingParams(logprobs=1), [ids("é")[:1]], delta=True, logprobs=True)
    entry = outputs[0].outputs[0].logprobs
    assert entry is not None
    (chosen, one), (top, other) = entry[0].items()
    assert (chosen, one.rank, one.logprob, one.decoded_token, one.token_bytes) == (ids("é")[0], 3, -0.5, "�", b"\xc3")
    assert (top, other.rank, other.logprob) == (9, 1, -0.1)


def two_sequences(delta: bool) -> list[Any]:
    assembler = RequestAssembler("r", None, [5], SamplingParams(n=2, prompt_logprobs=0), TOKENIZER, 0.0, delta=delta)
    prompt = [TokenLogprobs([6], [-1.0], 1)]
    script = [
        [SequenceOutput("r", 0, [], prompt_logprobs=prompt)],
        [
            SequenceOutput("r", 0, ids("a"), prompt_logprobs=prompt, num_cached_tokens=16, first_scheduled_time=0.5),
            SequenceOutput("r", 1, ids("x"), num_cached_tokens=16),
        ],
        [SequenceOutput("r", 0, ids("b"), finish_reason="length")],
        [SequenceOutput("r", 1, ids("y"), finish_reason="stop", stop_reason=4), SequenceOutput("r", 0, ids("?"))],
    ]
    return [assembler.feed(outputs, 1.0 + number).output for number, outputs in enumerate(script)]


def test_n_sequences_in_deltas() -> None:
    first, second, third, fourth = two_sequences(delta=True)
    assert first is None
    assert [(one.index, one.text) for one in second.outputs] == [(0, "a"), (1, "x")]
    assert [set(entry) if entry else None for entry in second.prompt_logprobs] == [None, {6}, {6}]
    assert (second.num_cached_tokens, second.finished, third.finished) == (16, False, False)
    assert third.prompt_logprobs is None
    assert third.outputs[0].finish_reason == "length"
    # What comes for a sequence that has ended is ignored.
    assert [(one.index, one.text, one.stop_reason) for one in fourth.outputs] == [(1, "", 4)]
    assert fourth.finished
    metrics = fourth.metrics
    assert (metrics.first_scheduled_time, metrics.first_token_time, metrics.finished_time) == (0.5, 2.0, 4.0)


def test_n_sequences_at_once() -> None:
    *nothing, whole = two_sequences(delta=False)
    assert nothing == [None, None, None]
    assert [(one.index, one.text, one.token_ids) for one in whole.outputs] == [
        (0, "ab", ids("ab")),
        (1, "x", ids("xy")),
    ]
    assert len(whole.prompt_logprobs) == 3
    assert whole.num_output_tokens == 4


def test_an_error_ends_the_request() -> None:
    assembler = RequestAssembler("r", None, [5], SamplingParams(), TOKENIZER, 0.0, delta=True)
    update = assembler.feed([SequenceOutput("r", 0, [], finish_reason="abort", error="logits are not finite")], 1.0)
    assert (update.error, update.output) == ("logits are not finite", None)


def test_without_a_tokenizer() -> None:
    params = SamplingParams(detokenize=False, logprobs=0)
    assembler = RequestAssembler("r", None, [5], params, None, 0.0, delta=False)
    given_logprobs = [TokenLogprobs([7], [-0.25], 1)]
    update = assembler.feed([SequenceOutput("r", 0, [7], given_logprobs, finish_reason="length")], 1.0)
    assert update.output is not None
    completion = update.output.outputs[0]
    assert (completion.text, completion.token_ids) == ("", [7])
    assert completion.logprobs is not None
    assert completion.logprobs[0][7].decoded_token is None


def test_abort_outputs_are_for_those_that_go_on() -> None:
    assembler = RequestAssembler("r", None, [5], SamplingParams(n=2), TOKENIZER, 0.0, delta=True)
    assembler.feed([SequenceOutput("r", 0, [7], finish_reason="length")], 1.0)
    assert [(one.index, one.finish_reason) for one in assembler.abort_outputs()] == [(1, "abort")]
    assert not assembler.finished
    update = assembler.feed(assembler.abort_outputs(), 2.0)
    assert update.output is not None
    assert update.output.finished
    assert assembler.finish_reasons == ["length", "abort"]
