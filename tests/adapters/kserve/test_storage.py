"""Which of what is mounted is the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import ConfigError
from octavo_adapters.kserve.storage import download, find_model


def test_forms(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / ".cache").mkdir()
    (tmp_path / "a" / "b" / "config.json").write_text("{}")
    assert find_model(tmp_path) == tmp_path / "a" / "b"
    assert find_model(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    file = tmp_path / "model.Q4_0.gguf"
    file.write_bytes(b"")
    assert find_model(file) == file
    assert find_model(tmp_path) == file


def test_none_or_several(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is: nothing"):
        find_model(tmp_path)
    with pytest.raises(ConfigError, match="no model directory"):
        find_model(tmp_path / "none")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"there is: a\.gguf, b\.gguf"):
        find_model(tmp_path)


def test_kserves_own_downloader(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    assert find_model(Path(download(f"file://{source}", str(tmp_path / "target")))).joinpath("config.json").is_file()
    with pytest.raises(ConfigError, match="cannot be had"):
        download(f"file://{tmp_path / 'nothing'}", str(tmp_path / "other"))
