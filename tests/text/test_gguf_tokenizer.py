"""Tokenizers rebuilt from GGUF metadata: SentencePiece's own library as oracle, and how each kind cuts a text."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.model.loading.gguf_file import read_metadata
from octavo.text.gguf_tokenizer import build_gguf_tokenizer
from octavo.text.tokenizer import Tokenizer

SENTENCES = [
    "the quick brown fox jumps over the lazy dog and then the other dog",
    "she sells sea shells by the sea shore",
    "internationalization of the nation",
    "世界 你好 and héllo wörld",
] * 5


def train() -> sentencepiece.SentencePieceProcessor:
    """A BPE of SentencePiece as Llama's: byte fallback, text left as it is."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


ORACLE = train()


def spm_metadata(**changes: Any) -> dict[str, Any]:
    pieces = range(ORACLE.get_piece_size())
    kinds = [
        2 if ORACLE.is_unknown(i) else 3 if ORACLE.is_control(i) else 6 if ORACLE.is_byte(i) else 1 for i in pieces
    ]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [ORACLE.id_to_piece(i) for i in pieces],
        "tokenizer.ggml.scores": [ORACLE.get_score(i) for i in pieces],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        **{f"tokenizer.ggml.{name}": value for name, value in changes.items()},
    }


def load(metadata: dict[str, Any]) -> Tokenizer:
    parts = build_gguf_tokenizer(metadata)
    return Tokenizer(
        parts.backend,
        specials=parts.specials,
        bos_token_id=parts.bos_token_id,
        eos_token_id=parts.eos_token_id,
        chat_template=None,
    )


SPM = load(spm_metadata())


@given(st.text(alphabet="thequickbrownfoxlazydogs   世界é🎉\n\tZ9", max_size=40))
@settings(max_examples=400, deadline=None)
def test_sentencepiece_equals_the_library(text: str) -> None:
    ids = SPM.encode(text)
    # The library answers "" with nothing, and so do we; any other text gets the space it begins with.
    assert ids == ORACLE.encode(text)
    assert SPM.decode(ids) == ORACLE.decode(ids) == text


def test_without_a_space_before_the_text() -> None:
    tokenizer = load(spm_metadata(add_space_prefix=False))
    assert tokenizer.token_bytes(tokenizer.encode("the")[0])[:1] == b"t"
    assert tokenizer.decode(tokenizer.encode(" the dog")) == " the dog"


@pytest.mark.parametrize(
    ("begin", "end", "want"), [(True, False, [1, None]), (False, True, [None, 2]), (True, True, [1, None, 2])]
)
def test_tokens_around_a_text(begin: bool, end: bool, want: list[int | None]) -> None:
    tokenizer = load(spm_metadata(add_bos_token=begin, add_eos_token=end))
    plain = tokenizer.encode("the", add_special_tokens=False)
    assert plain == SPM.encode("the")
    assert tokenizer.encode("the") == [i for one in want for i in (plain if one is None else [one])]


def test_sentencepiece_begins_with_bos_unless_told_otherwise() -> None:
    metadata = spm_metadata()
    del metadata["tokenizer.ggml.add_bos_token"]
    assert load(metadata).encode("the")[0] == 1


def test_special_tokens_in_a_text_count_as_such() -> None:
    assert SPM.encode("the</s>")[-1] == 2
    assert SPM.is_special(2)
    assert not SPM.is_special(SPM.encode("the")[0])
    assert SPM.decode(SPM.encode("the</s>")) == "the"


TEXT = "It's 12345 naïve\nWORDSmixed 你好, f(x)/\n\n  ok"
CUTS = {
    "gpt-2": ["It", "'s", " 12345", " naïve", "\n", "WORDSmixed", " 你好", ",", " f", "(", "x", ")/", "\n\n ", " ok"],
    "smollm": [
        "It",
        "'s",
        " ",
        *"12345",
        " naïve",
        "\n",
        "WORDSmixed",
        " 你好",
        ",",
        " f",
        "(",
        "x",
        ")/",
        "\n\n ",
        " ok",
    ],
    "llama-bpe": [
        "It",
        "'s",
        " ",
        "123",
        "45",
        " naïve",
        "\n",
        "WORDSmixed",
        " 你好",
        ",",
        " f",
        "(x",
        ")/\n\n",
        " ",
        " ok",
    ],
    "qwen2": ["It", "'s", " ", *"12345", " naïve", "\n", "WORDSmixed", " 你好", ",", " f", "(x", ")/\n\n", " ", " ok"],
    "tekken": ["It", "'s", " ", *"12345", " naïve", "\n", "WORDSmixed", " 你好", ",", " f", "(x", ")/\n\n", " ", " ok"],
    "deepseek-coder": [
        *("It", "'", "s", " ", *"12345", " naïve", "\n", "WORDSmixed", " ", "你好", ",", " f", "(", "x", ")/"),
        *("\n", "\n", " ", " ok"),
    ],
}


@pytest.mark.parametrize("pre", CUTS)
def test_how_a_text_is_cut_into_words(smollm2_path: Path, pre: str) -> None:
    backend = build_gguf_tokenizer({**read_metadata(smollm2_path), "tokenizer.ggml.pre": pre}).backend
    cut = [TEXT[slice(*place)] for _, place in backend.pre_tokenizer.pre_tokenize_str(TEXT)]
    assert "".join(cut) == TEXT
    assert cut == CUTS[pre]


def test_tekken_cuts_where_case_changes(smollm2_path: Path) -> None:
    """Llama 3's pattern keeps `camelCase` whole."""
    backend = build_gguf_tokenizer({**read_metadata(smollm2_path), "tokenizer.ggml.pre": "tekken"}).backend
    assert [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("camelCase")] == ["camel", "Case"]


@pytest.mark.parametrize("change", [{"tokenizer.ggml.pre": "default"}, {}])
def test_a_file_that_does_not_say_how_it_cuts(
    smollm2_path: Path, change: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    metadata = read_metadata(smollm2_path)
    del metadata["tokenizer.ggml.pre"]
    with caplog.at_level(logging.WARNING):
        build_gguf_tokenizer({**metadata, **change})
    assert "--tokenizer" in caplog.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pre": "martian"}, r"martian.*--tokenizer"),
        ({"model": "wordpiece"}, r"wordpiece.*--tokenizer"),
        ({"tokens": []}, "no vocabulary"),
        ({"merges": ["nowhere found"]}, "damaged"),
        ({"eos_token_id": 50000}, "eos_token_id is 50000"),
    ],
)
def test_refusals(smollm2_path: Path, change: dict[str, Any], words: str) -> None:
    changed = {f"tokenizer.ggml.{name}": value for name, value in change.items()}
    with pytest.raises(ConfigError, match=words):
        build_gguf_tokenizer({**read_metadata(smollm2_path), **changed})
