"""From a model reference to a decoder with its weights: safetensors, GGUF, hub id, local path, package resource.

Names load on first use: resolving a reference needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.model.loading.source import ModelSource, resolve_model
    from octavo.model.loading.spec_loading import load_spec, resolve_dtype
    from octavo.model.loading.weights import load_decoder

_HOMES = {
    "ModelSource": "octavo.model.loading.source",
    "load_decoder": "octavo.model.loading.weights",
    "load_spec": "octavo.model.loading.spec_loading",
    "resolve_dtype": "octavo.model.loading.spec_loading",
    "resolve_model": "octavo.model.loading.source",
}

__all__ = ["ModelSource", "load_decoder", "load_spec", "resolve_dtype", "resolve_model"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'octavo.model.loading' has no attribute '{name}'")
