"""model.json and the model's parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo import ConfigError
from octavo_adapters.triton.options import AdapterOptions, read_engine_config


def write(path: Path, content: Any) -> Path:
    (path / "model.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_names_and_strings_as_in_vllms_backend(tmp_path: Path) -> None:
    options = {"model": "org/name", "max_num_seqs": "2", "enable_prefix_caching": "false", "dtype": "float32"}
    config = read_engine_config(write(tmp_path, options), "llm")
    assert (config.model, config.max_num_seqs, config.enable_prefix_caching) == ("org/name", 2, False)
    assert config.served_model_name == ["llm"]


def test_a_relative_path_is_the_version_directorys(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "chat.jinja").write_text("x")
    config = read_engine_config(write(tmp_path, {"model": "weights", "chat_template": "chat.jinja"}), "llm")
    assert (config.model, config.chat_template) == (str(tmp_path / "weights"), str(tmp_path / "chat.jinja"))
    assert read_engine_config(write(tmp_path, {"model": "pkg://a/b.gguf"}), "llm").model == "pkg://a/b.gguf"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model": "x", "max_num_sequs": 1}, "did you mean 'max_num_seqs'"),
        ({"model": "x", "max_num_seqs": "many"}, "max_num_seqs"),
        ({}, "'model' is required"),
        ("{", "cannot be read as JSON"),
        ("[]", "must hold a JSON object"),
    ],
)
def test_what_is_wrong(tmp_path: Path, content: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_engine_config(write(tmp_path, content), "llm")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*model\.json"):
        read_engine_config(tmp_path, "llm")


def test_adapter_options() -> None:
    assert AdapterOptions.from_model_config({}) == AdapterOptions(30.0, None)
    parameters = {"drain_timeout": {"string_value": "5"}, "GPU_DEVICE_IDS": {"string_value": "0;1"}, "other": {}}
    assert AdapterOptions.from_model_config({"parameters": parameters}) == AdapterOptions(5.0, "0;1")
    with pytest.raises(ConfigError, match="drain_timeout is 'soon'"):
        AdapterOptions.from_model_config({"parameters": {"drain_timeout": {"string_value": "soon"}}})
