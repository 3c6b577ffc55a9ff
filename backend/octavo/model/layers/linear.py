"""Linear: the one place where weights meet a matrix product, so packing and low-bit formats come in here."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class Linear:
    """y = x W^T + b. Several projections of the same input share one weight: `sizes` are their rows.

    Args:
        in_features: columns of the weight.
        sizes: output features of each projection, in order.
    """

    def __init__(
        self, in_features: int, sizes: tuple[int, ...], *, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.sizes = sizes
        out_features = sum(sizes)
        self.weight = torch.empty(out_features, in_features, dtype=dtype, device=device)
        self.bias = torch.empty(out_features, dtype=dtype, device=device) if bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in_features] -> [T, sum(sizes)]."""
        return F.linear(x, self.weight, self.bias)

    def slots(self, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """Where each projection's weight (and bias) is loaded, by name."""
        found = dict(zip((f"{name}.weight" for name in names), torch.split(self.weight, list(self.sizes)), strict=True))
        if self.bias is not None:
            found |= zip((f"{name}.bias" for name in names), torch.split(self.bias, list(self.sizes)), strict=True)
        return found
