"""Family: how a group of checkpoints spells its configuration and its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.model.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Family:
    """
    Attributes:
        architectures: Hugging Face class names.
        gguf_architecture: `general.architecture` of its GGUF files, if GGUF knows it.
        spec: Hugging Face config -> DecoderSpec, token ids and stored dtype left out.
        gguf_config: GGUF metadata -> Hugging Face config.
        names: our weight names -> Hugging Face's; `{i}` is the layer.
        gguf_names: our weight names -> GGUF's.
        gguf_permuted: GGUF stores query and key rows with rotary pairs as neighbours.
    """

    architectures: tuple[str, ...]
    spec: Callable[[Any], DecoderSpec]
    names: Mapping[str, str]
    gguf_architecture: str | None = None
    gguf_config: Callable[[Mapping[str, Any]], Any] | None = None
    gguf_names: Mapping[str, str] | None = None
    gguf_permuted: bool = False
