"""octavo: an LLM serving engine core behind the serving stack a team already runs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.engine.async_engine import AsyncEngine
    from octavo.engine.llm import LLM
    from octavo.errors import (
        ConfigError,
        EngineDeadError,
        EngineOverloadedError,
        EngineStoppedError,
        OctavoError,
        RequestError,
        RequestTimeoutError,
    )
    from octavo.outputs import CompletionOutput, Logprob, RequestOutput
    from octavo.sampling_params import SamplingParams

__version__ = "0.1.0"

_HOMES = {
    "AsyncEngine": "octavo.engine.async_engine",
    "CompletionOutput": "octavo.outputs",
    "ConfigError": "octavo.errors",
    "EngineConfig": "octavo.config",
    "EngineDeadError": "octavo.errors",
    "EngineOverloadedError": "octavo.errors",
    "EngineStoppedError": "octavo.errors",
    "LLM": "octavo.engine.llm",
    "Logprob": "octavo.outputs",
    "OctavoError": "octavo.errors",
    "RequestError": "octavo.errors",
    "RequestOutput": "octavo.outputs",
    "RequestTimeoutError": "octavo.errors",
    "SamplingParams": "octavo.sampling_params",
}

__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "ConfigError",
    "EngineConfig",
    "EngineDeadError",
    "EngineOverloadedError",
    "EngineStoppedError",
    "Logprob",
    "OctavoError",
    "RequestError",
    "RequestOutput",
    "RequestTimeoutError",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    """Public names load on first use, so `import octavo` and `octavo --help` need no torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'octavo' has no attribute '{name}'")
