"""GatedLinear: activation(gate(x)) * up(x), the two projections in one product."""

from __future__ import annotations

import torch

import octavo_kernels as kernels
from octavo.model.layers.linear import Linear
from octavo.model.spec import Activation


class GatedLinear(Linear):
    """A Linear of two projections of `size` features, the gate and what it is multiplied with."""

    def __init__(
        self,
        in_features: int,
        size: int,
        activation: Activation,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(in_features, (size, size), bias=bias, dtype=dtype, device=device)
        self._activation: Activation = activation

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """[T, in_features] -> out [T, size]."""
        if self._packed is not None and self._activation != "gelu":
            self._packed.multiply_gated(x, self._activation, out)
            return
        both = out.new_empty((x.shape[0], sum(self.sizes)))
        super().__call__(x, both)
        if self._activation == "silu":
            kernels.silu_and_mul(both, out)
        else:
            kernels.gelu_and_mul(both, out, approximate="tanh" if self._activation == "gelu_tanh" else "none")

    def pack(self) -> None:
        # The error function has no place in the product's epilogue; its gate is applied afterwards.
        self._packed = kernels.pack_weight(self._plain(), self.bias, gated=self._activation != "gelu")
        if self._packed is not None:
            self.weight = None
