"""The default model's tokenizer, against transformers where the two should agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from octavo.errors import RequestError
from octavo.model.loading.source import ModelSource
from octavo.text.tokenizer import Tokenizer

MESSAGES = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "?"},
]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.load(ModelSource("gguf", smollm2_path, "x"))


@pytest.fixture(scope="module")
def oracle(smollm2_path: Path) -> Any:
    """transformers' reading of the same file."""
    return AutoTokenizer.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)


def test_digits_are_split_one_by_one(smollm2: Tokenizer, oracle: Any) -> None:
    """The vocabulary has no word of two plain digits, so splitting shows in other numerals alone: transformers, which
    reads no pre-tokenizer from GGUF, joins the space and the first byte of a superscript."""
    assert [smollm2.token_text(i) for i in smollm2.encode("2024 and 17")] == [*"2024", " and", " ", *"17"]
    assert [smollm2.token_bytes(i) for i in smollm2.encode("x ²")] == [b"x", b" ", "²".encode()]
    assert oracle.encode("x ²", add_special_tokens=False) != smollm2.encode("x ²")


@given(st.text(st.characters(exclude_categories=("Cs", "Nd", "Nl", "No")), max_size=60))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_encode_equals_transformers(smollm2: Tokenizer, oracle: Any, text: str) -> None:
    ids = smollm2.encode(text)
    assert ids == oracle.encode(text, add_special_tokens=False)
    # Not the text: this vocabulary lacks 21 of the 256 bytes, some of them of rare scripts.
    assert smollm2.decode(ids) == oracle.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize(
    "text",
    ["Hello world 12,345.", "  two spaces\n\nlines", "你好世界 🎉", "def f(x):\n    return x", "<|im_start|>user"],
)
def test_texts_equal_transformers(smollm2: Tokenizer, oracle: Any, text: str) -> None:
    assert smollm2.encode(text) == oracle.encode(text, add_special_tokens=False)


def test_chat_equals_transformers(smollm2: Tokenizer, oracle: Any) -> None:
    for messages in (MESSAGES, MESSAGES[:1], [{"role": "system", "content": "Be brief."}, *MESSAGES]):
        for generation in (True, False):
            want = oracle.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation)
            assert smollm2.render_chat(messages, add_generation_prompt=generation) == want


@pytest.mark.parametrize("content", ["Once upon", "Once upon ", "end", "i", " im_end"])
def test_a_continued_chat_equals_transformers(smollm2: Tokenizer, oracle: Any, content: str) -> None:
    """Looking for the content's last place in the text found `end` inside `<|im_end|>`."""
    messages = [*MESSAGES[:1], {"role": "assistant", "content": content}]
    want = oracle.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    text = smollm2.render_chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert text == want
    assert text.endswith("<|im_start|>assistant\n" + content)


def test_special_ids(smollm2: Tokenizer) -> None:
    assert smollm2.eos_token_id == 2
    assert smollm2.is_special(2)
    assert not smollm2.is_special(5000)
    assert smollm2.vocab_size == 49152
    assert smollm2.token_bytes(2) == b"<|im_end|>"
    assert smollm2.decode(smollm2.encode("a<|im_end|>b")) == "ab"
    assert smollm2.decode(smollm2.encode("a<|im_end|>b"), skip_special_tokens=False) == "a<|im_end|>b"


def test_bad_words_with_and_without_a_space(smollm2: Tokenizer) -> None:
    words = smollm2.bad_word_ids(["dog", " dog", "unquestionably"])
    texts = ["".join(smollm2.token_text(i) for i in ids) for ids in words]
    assert texts == ["dog", " dog", "unquestionably", " unquestionably"]


def test_bad_input(smollm2: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        smollm2.encode("a\ud800b")
    with pytest.raises(RequestError, match=r"49152 is out of range.*49151"):
        smollm2.decode([49152])
    with pytest.raises(RequestError, match="-1"):
        smollm2.decode([-1])
