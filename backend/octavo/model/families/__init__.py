"""The families octavo knows, one file each: config -> DecoderSpec, and the names of the weights."""

from __future__ import annotations

from octavo.errors import UnsupportedModelError
from octavo.model.families.family import Family
from octavo.model.families.llama import LLAMA
from octavo.model.families.mistral import MISTRAL

FAMILIES: tuple[Family, ...] = (LLAMA, MISTRAL)


def supported_architectures() -> list[str]:
    return [name for family in FAMILIES for name in family.architectures]


def family_of(architecture: str) -> Family:
    """By Hugging Face class name. Raises UnsupportedModelError naming the supported ones."""
    for family in FAMILIES:
        if architecture in family.architectures:
            return family
    raise UnsupportedModelError(
        f"architecture '{architecture}' is not supported; supported: {', '.join(supported_architectures())}", "model"
    )


def family_of_gguf(architecture: str) -> Family:
    """By a GGUF file's `general.architecture`. Raises UnsupportedModelError naming the supported ones."""
    for family in FAMILIES:
        if family.gguf_architecture == architecture:
            return family
    known = ", ".join(family.gguf_architecture for family in FAMILIES if family.gguf_architecture)
    raise UnsupportedModelError(f"GGUF architecture '{architecture}' is not supported; supported: {known}", "model")


__all__ = ["FAMILIES", "Family", "family_of", "family_of_gguf", "supported_architectures"]
