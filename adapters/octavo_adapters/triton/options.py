"""What a model directory says: model.json for the engine, parameters in config.pbtxt for the adapter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo import ConfigError, EngineConfig

MODEL_FILE = "model.json"
DRAIN_TIMEOUT = 30.0
_PATHS = ("model", "tokenizer", "chat_template")


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """
    Attributes:
        drain_timeout: seconds that running requests have when the model is unloaded.
        gpu_device_ids: see `devices.visible_devices`.
    """

    drain_timeout: float = DRAIN_TIMEOUT
    gpu_device_ids: str | None = None

    @classmethod
    def from_model_config(cls, config: Mapping[str, Any]) -> AdapterOptions:
        """From a model's configuration; names in any case. Raises ConfigError for a drain_timeout that is none."""
        given = {
            str(name).lower(): str(value.get("string_value", ""))
            for name, value in (config.get("parameters") or {}).items()
        }
        text = given.get("drain_timeout", str(DRAIN_TIMEOUT))
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 86400:
            raise ConfigError(f"drain_timeout is '{text}'; it is seconds from 0 to 86399", "drain_timeout")
        return cls(seconds, given.get("gpu_device_ids") or None)


def read_engine_config(version_dir: Path, model_name: str) -> EngineConfig:
    """The engine's options in a version directory. Values may be strings, as in vLLM's backend.

    Relative paths are relative to the directory, where there is such a file or directory.

    Raises:
        ConfigError: no model.json, or one that is wrong.
    """
    path = version_dir / MODEL_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no '{path}'; it holds the engine's options, {{'model': ...}}", "model") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"'{path}' cannot be read as JSON: {error}", "model") from None
    if not isinstance(values, dict):
        raise ConfigError(f"'{path}' must hold a JSON object of engine options", "model")
    for name in _PATHS:
        value = values.get(name)
        if isinstance(value, str) and "://" not in value and (version_dir / value).exists():
            values[name] = str((version_dir / value).resolve())
    return EngineConfig.from_sources({"served_model_name": model_name}, values)
