"""RopeSpec from a Hugging Face config, through transformers' own initialisers."""

from __future__ import annotations

from typing import Any

import torch

from octavo.errors import UnsupportedModelError
from octavo.model.spec import RopeSpec

# longrope switches between two sets of frequencies by the length of the text, which cached keys cannot follow.
_UNSUPPORTED = ("longrope",)


def rope_spec(config: Any, *, head_dim: int, interleaved: bool = False) -> RopeSpec:
    """The frequencies of `config.rope_parameters`.

    `dynamic` scales only beyond max_position_embeddings, where octavo's context ends: it is the default there.

    Raises:
        UnsupportedModelError: a type that octavo or transformers does not know.
    """
    parameters = config.rope_parameters
    kind = parameters.get("rope_type", "default")
    if kind in ("default", "dynamic"):
        rotary_dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
        frequencies, scaling = 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    else:
        frequencies, scaling = _scaled(config, kind)
    return RopeSpec(tuple(frequencies.float().tolist()), float(scaling), interleaved)


def _scaled(config: Any, kind: str) -> tuple[torch.Tensor, float]:
    # Takes a second to import, and most models need nothing of it.
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind not in ROPE_INIT_FUNCTIONS or kind in _UNSUPPORTED:
        known = ", ".join(["default", *(name for name in ROPE_INIT_FUNCTIONS if name not in _UNSUPPORTED)])
        raise UnsupportedModelError(f"rope scaling type '{kind}' is not supported; supported: {known}", "model")
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies, scaling
