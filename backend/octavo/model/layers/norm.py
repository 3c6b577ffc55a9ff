"""RMSNorm, alone or fused with the residual's addition."""

from __future__ import annotations

import torch

import octavo_kernels as kernels


class RMSNorm:
    """Owns the scale, [size]."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        self._eps = eps
        self.weight = torch.empty(size, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """[T, size] -> out [T, size]."""
        kernels.rms_norm(x, self.weight, self._eps, out)

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor, out: torch.Tensor) -> None:
        """Adds x to the residual in place; the residual's norm goes to out."""
        kernels.fused_add_rms_norm(x, residual, self.weight, self._eps, out)
