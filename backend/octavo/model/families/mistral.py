"""Mistral: Llama with a sliding window. Its GGUF files call themselves `llama`."""

from __future__ import annotations

from typing import Any

from octavo.model.families.family import Family
from octavo.model.families.llama import NAMES, llama_spec
from octavo.model.spec import DecoderSpec


def mistral_spec(config: Any) -> DecoderSpec:
    window = getattr(config, "sliding_window", None)
    return llama_spec(config, architecture="MistralForCausalLM", sliding_windows=(window,) * config.num_hidden_layers)


MISTRAL = Family(architectures=("MistralForCausalLM",), spec=mistral_spec, names=NAMES)
