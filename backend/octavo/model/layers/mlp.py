"""The gated feed-forward block."""

from __future__ import annotations

import torch

from octavo.model.layers.gated_linear import GatedLinear
from octavo.model.layers.linear import Linear
from octavo.model.layers.workspace import Workspace
from octavo.model.spec import DecoderSpec


class GatedMLP:
    """down(activation(gate(x)) * up(x))."""

    def __init__(self, spec: DecoderSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        size = spec.intermediate_size
        self._gate_up = GatedLinear(
            spec.hidden_size, size, spec.activation, bias=spec.mlp_bias, dtype=dtype, device=device
        )
        self._down = Linear(size, (spec.hidden_size,), bias=spec.mlp_bias, dtype=dtype, device=device)

    def __call__(self, space: Workspace) -> None:
        """From `space.normed` to `space.update`."""
        self._gate_up(space.normed, space.gated)
        self._down(space.gated, space.update)

    def pack(self) -> None:
        self._gate_up.pack()
        self._down.pack()

    def slots(self) -> dict[str, torch.Tensor]:
        return self._gate_up.slots(("gate", "up")) | self._down.slots(("down",))
