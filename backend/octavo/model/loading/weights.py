"""Fills a decoder from a checkpoint: slice by slice, into place."""

from __future__ import annotations

import logging
import re
from typing import Any

import torch
from tqdm import tqdm

from octavo.errors import ConfigError
from octavo.model.decoder import Decoder
from octavo.model.families import Family
from octavo.model.loading.checkpoint import Checkpoint, GGUFCheckpoint, SafetensorsCheckpoint
from octavo.model.loading.source import ModelSource
from octavo.model.loading.spec_loading import family_for
from octavo.model.spec import DecoderSpec

logger = logging.getLogger("octavo.model")

# Elements of one slice: 8 MiB in float32, small beside any model and long enough to copy at full speed.
_SLICE_ELEMENTS = 2 << 20
# What checkpoints carry beside weights: tables that are computed, and scaling factors read with the configuration.
_NOT_WEIGHTS = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|rope_freqs\.weight|rope_factors_(long|short)\.weight)$")


def load_decoder(
    source: ModelSource,
    spec: DecoderSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str = "auto",
    progress: bool = True,
    num_positions: int | None = None,
) -> Decoder:
    """Builds the decoder, loads its weights, converted to `dtype`, and packs them.

    Args:
        quantization: `auto` would keep low-bit weights where there is a kernel for them; there is none yet, so they are
            dequantised, and said to be.
        progress: show a bar, if standard error is a terminal.
        num_positions: longest text to be served; by default the model's context.

    Raises:
        ConfigError: a weight is missing, of the wrong shape, unknown, or stored in a way octavo cannot read.
    """
    family = family_for(source)
    checkpoint: Checkpoint = (
        GGUFCheckpoint(source.path) if source.kind == "gguf" else SafetensorsCheckpoint(source.path)
    )
    low_bit = checkpoint.low_bit_types()
    if low_bit and quantization == "auto":
        logger.info("dequantising %s weights to %s", "/".join(sorted(low_bit)), str(dtype).removeprefix("torch."))
    decoder = Decoder(spec, dtype=dtype, device=device, num_positions=num_positions or spec.context_length)
    slots = decoder.slots()
    names = _stored_names(family, source, slots)
    _check(checkpoint, slots, names, source, spec)
    total = sum(slot.numel() for slot in slots.values())
    bar: tqdm[Any]
    with tqdm(
        total=total, desc="Loading weights", unit="", unit_scale=True, disable=None if progress else True, leave=False
    ) as bar:
        for name, slot in slots.items():
            _fill(slot, checkpoint, names[name], bar)
            if family.gguf_permuted and source.kind == "gguf":
                _unpermute(name, slot, spec)
    slots.clear()
    decoder.pack()
    return decoder


def _stored_names(family: Family, source: ModelSource, slots: dict[str, torch.Tensor]) -> dict[str, str]:
    templates = family.gguf_names if source.kind == "gguf" else family.names
    if templates is None:
        raise ConfigError(f"GGUF files of {family.architectures[0]} are not supported", "model")
    names = {}
    for name in slots:
        layer = re.match(r"layers\.(\d+)\.", name)
        template = re.sub(r"^layers\.\d+\.", "layers.{i}.", name)
        names[name] = templates[template].format(i=layer[1] if layer else "")
    return names


def _check(
    checkpoint: Checkpoint,
    slots: dict[str, torch.Tensor],
    names: dict[str, str],
    source: ModelSource,
    spec: DecoderSpec,
) -> None:
    shapes = checkpoint.shapes()
    for name, slot in slots.items():
        stored = names[name]
        if stored not in shapes:
            raise ConfigError(f"weight '{stored}' is missing from {source.path}", "model")
        if shapes[stored] != tuple(slot.shape):
            raise ConfigError(
                f"weight '{stored}' in {checkpoint.file_of(stored)} has shape {list(shapes[stored])}, but the "
                f"configuration makes it {list(slot.shape)}",
                "model",
            )
    known = set(names.values())
    if spec.tie_word_embeddings:
        known |= {"lm_head.weight", "output.weight"}
    extra = sorted(name for name in shapes if name not in known and not _NOT_WEIGHTS.match(name))
    if extra:
        raise ConfigError(
            f"{checkpoint.file_of(extra[0])} has {len(extra)} weights that a {spec.architecture} does not have, "
            f"such as '{extra[0]}': the configuration does not describe this checkpoint",
            "model",
        )


def _fill(slot: torch.Tensor, checkpoint: Checkpoint, name: str, bar: tqdm[Any]) -> None:
    rows = slot.shape[0]
    row_elements = slot.numel() // rows
    step = max(1, _SLICE_ELEMENTS // row_elements)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        slot[start:stop].copy_(checkpoint.read_rows(name, start, stop))
        bar.update((stop - start) * row_elements)


def _unpermute(name: str, slot: torch.Tensor, spec: DecoderSpec) -> None:
    """Rotary pairs from neighbours, as GGUF stores a Llama's query and key rows, back to the two halves of a head."""
    part = name.split(".")[-2]
    if part not in ("q", "k"):
        return
    heads = spec.num_heads if part == "q" else spec.num_kv_heads
    pairs = slot.view(heads, spec.head_dim // 2, 2, -1)
    slot.copy_(pairs.transpose(1, 2).reshape(slot.shape).clone())
