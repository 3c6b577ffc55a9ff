"""Which file or directory under a mounted directory is the model."""

from __future__ import annotations

from pathlib import Path

from octavo import ConfigError


def find_model(root: Path) -> Path:
    """What KServe's storage initialiser mounted: a Hugging Face directory, a GGUF file, or one directory around either.

    Raises:
        ConfigError: there is none, or more than one; the message says what is there.
    """
    if root.is_file():
        return root
    if not root.is_dir():
        raise ConfigError(f"there is no model directory '{root}': mount one there, or give --model_dir", "model_dir")
    if (root / "config.json").is_file():
        return root
    files = sorted(root.glob("*.gguf"))
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    if len(files) == 1:
        return files[0]
    if not files and len(folders) == 1:
        return find_model(folders[0])
    shown = ", ".join(path.name for path in sorted(root.iterdir())[:10]) or "nothing"
    raise ConfigError(
        f"'{root}' is no model: it needs a config.json or one .gguf file, itself or in its only directory; there is: "
        f"{shown}",
        "model_dir",
    )


def download(uri: str, target: str) -> str:
    """Fetches a `storage_uri` with KServe's own downloader; returns where it is.

    Raises:
        ConfigError: it cannot be had, or the downloader is not installed.
    """
    try:
        from kserve_storage import Storage
    except ImportError:
        raise ConfigError(
            "storage_uri needs KServe's storage package: pip install 'octavo[kserve]'", "storage_uri"
        ) from None
    try:
        return str(Storage.download(uri, target))
    except Exception as error:  # noqa: BLE001 - whatever a cloud's library raises: it is told in one line
        raise ConfigError(f"storage_uri '{uri}' cannot be had: {error}", "storage_uri") from None
