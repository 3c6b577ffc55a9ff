"""Linear: the one place where weights meet a matrix product, so packing and low-bit formats come in here."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import octavo_kernels as kernels
from octavo_kernels import PackedWeight


class Linear:
    """y = x W^T + b. Several projections of the same input share one weight: `sizes` are their rows.

    Filled through `slots`, then `pack`ed, which frees the plain weight where a native product takes its place.

    Args:
        in_features: columns of the weight.
        sizes: output features of each projection, in order.
    """

    def __init__(
        self, in_features: int, sizes: tuple[int, ...], *, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.sizes = sizes
        out_features = sum(sizes)
        self.weight: torch.Tensor | None = torch.empty(out_features, in_features, dtype=dtype, device=device)
        self.bias = torch.empty(out_features, dtype=dtype, device=device) if bias else None
        self._packed: PackedWeight | None = None

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """[T, in_features] -> out [T, sum(sizes)]."""
        if self._packed is not None:
            self._packed.multiply(x, out)
        elif self.bias is None:
            torch.mm(x, self._plain().t(), out=out)
        else:
            torch.addmm(self.bias, x, self._plain().t(), out=out)

    def float32(self, x: torch.Tensor) -> torch.Tensor:
        """The same in float32, not rounded on the way where the product is our own."""
        if self._packed is not None:
            out = torch.empty((x.shape[0], sum(self.sizes)), dtype=torch.float32)
            self._packed.multiply(x, out)
            return out
        return F.linear(x, self._plain(), self.bias).float()

    def pack(self) -> None:
        """Call once all weights are loaded; `slots` is of no use afterwards."""
        self._packed = kernels.pack_weight(self._plain(), self.bias)
        if self._packed is not None:
            self.weight = None

    def slots(self, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """Where each projection's weight (and bias) is loaded, by name."""
        parts = torch.split(self._plain(), list(self.sizes))
        found = dict(zip((f"{name}.weight" for name in names), parts, strict=True))
        if self.bias is not None:
            found |= zip((f"{name}.bias" for name in names), torch.split(self.bias, list(self.sizes)), strict=True)
        return found

    def _plain(self) -> torch.Tensor:
        if self.weight is None:
            raise RuntimeError("the weight has been packed")
        return self.weight
