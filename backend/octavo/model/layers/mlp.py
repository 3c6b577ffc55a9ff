"""The gated feed-forward block."""

from __future__ import annotations

import torch

import octavo_kernels as kernels
from octavo.model.layers.linear import Linear
from octavo.model.spec import Activation, DecoderSpec


class GatedMLP:
    """down(activation(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, spec: DecoderSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        size = spec.intermediate_size
        self._activation: Activation = spec.activation
        self.gate_up = Linear(spec.hidden_size, (size, size), bias=spec.mlp_bias, dtype=dtype, device=device)
        self.down = Linear(size, (spec.hidden_size,), bias=spec.mlp_bias, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        gated = self.gate_up(x)
        if self._activation == "silu":
            hidden = kernels.silu_and_mul(gated)
        else:
            hidden = kernels.gelu_and_mul(gated, approximate="tanh" if self._activation == "gelu_tanh" else "none")
        return self.down(hidden)

    def slots(self) -> dict[str, torch.Tensor]:
        return self.gate_up.slots(("gate", "up")) | self.down.slots(("down",))
