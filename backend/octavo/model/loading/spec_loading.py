"""From a model on disk to its DecoderSpec and the family that reads it; no weights are touched."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from octavo.errors import ConfigError, UnsupportedModelError
from octavo.model.families import Family, family_of, family_of_gguf, supported_architectures
from octavo.model.loading.checkpoint import GGUFCheckpoint
from octavo.model.loading.gguf_file import read_gguf
from octavo.model.loading.source import ModelSource
from octavo.model.spec import DecoderSpec

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
# Frequencies of a scaled rotary embedding, as factors that divide the plain ones.
_GGUF_ROPE_FACTORS = "rope_freqs.weight"


def family_for(source: ModelSource) -> Family:
    """Raises UnsupportedModelError naming the supported ones; ConfigError for an unreadable configuration."""
    if source.kind == "gguf":
        return family_of_gguf(str(read_gguf(source.path).metadata.get("general.architecture")))
    architectures = _read_json(source.path / "config.json").get("architectures") or []
    if not architectures:
        raise UnsupportedModelError(
            f"'{source.path / 'config.json'}' names no architecture; supported: {', '.join(supported_architectures())}",
            "model",
        )
    return family_of(architectures[0])


def load_spec(source: ModelSource, *, trust_remote_code: bool = False) -> DecoderSpec:
    """The spec of a model; raises as `family_for` does."""
    family = family_for(source)
    if source.kind == "gguf":
        return _gguf_spec(source.path, family)
    # Not at the top: GGUF files do without transformers, whose import takes as long as all the rest of loading.
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(source.path, trust_remote_code=trust_remote_code, local_files_only=True)
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise ConfigError(f"'{source.path / 'config.json'}' cannot be read: {error}", "model") from None
    generation_file = source.path / "generation_config.json"
    generation = _read_json(generation_file) if generation_file.is_file() else {}
    stored = getattr(config, "dtype", None)
    return dataclasses.replace(
        family.spec(config),
        bos_token_id=config.bos_token_id,
        eos_token_ids=_ids(generation.get("eos_token_id"), config.eos_token_id),
        checkpoint_dtype=str(stored).removeprefix("torch.") if stored is not None else "bfloat16",
    )


def resolve_dtype(wanted: str, spec: DecoderSpec, device: torch.device) -> torch.dtype:
    """`auto` is the checkpoint's own, where the device computes in it; float16 is for CUDA alone.

    Raises:
        ConfigError: float16 was asked for on a CPU.
    """
    if wanted == "auto":
        name = spec.checkpoint_dtype if spec.checkpoint_dtype in _DTYPES else "bfloat16"
        return torch.bfloat16 if name == "float16" and device.type != "cuda" else _DTYPES[name]
    if wanted == "float16" and device.type != "cuda":
        raise ConfigError("dtype float16 needs a CUDA device; on a CPU use bfloat16 or float32", "dtype")
    return _DTYPES[wanted]


def _gguf_spec(path: Path, family: Family) -> DecoderSpec:
    file = read_gguf(path)
    metadata = file.metadata
    if family.gguf_config is None:
        raise UnsupportedModelError(f"GGUF files of {family.architectures[0]} are not supported", "model")
    try:
        spec = family.spec(family.gguf_config(metadata))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"'{path}' lacks metadata of its architecture: {error}", "model") from None
    rope = spec.rope
    if _GGUF_ROPE_FACTORS in file.tensors:
        factors = GGUFCheckpoint(path).read_rows(_GGUF_ROPE_FACTORS, 0, len(rope.inverse_frequencies)).tolist()
        frequencies = tuple(one / factor for one, factor in zip(rope.inverse_frequencies, factors, strict=True))
        rope = dataclasses.replace(rope, inverse_frequencies=frequencies)
    embedding = file.tensors.get("token_embd.weight")
    plain = {"F32": "float32", "F16": "float16"}
    return dataclasses.replace(
        spec,
        rope=rope,
        vocab_size=embedding.shape[0] if embedding is not None else spec.vocab_size,
        tie_word_embeddings="output.weight" not in file.tensors,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_ids(metadata.get("tokenizer.ggml.eos_token_id"), metadata.get("tokenizer.ggml.eot_token_id")),
        checkpoint_dtype=plain.get(embedding.type.name, "bfloat16") if embedding is not None else "bfloat16",
    )


def _ids(*given: int | Iterable[int] | None) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for one in given:
        for token_id in [one] if isinstance(one, int) else one or ():
            found[token_id] = None
    return tuple(found)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"'{path}' cannot be read: {error}", "model") from None
    if not isinstance(content, dict):
        raise ConfigError(f"'{path}' does not hold a JSON object", "model")
    return content
