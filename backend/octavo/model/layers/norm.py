"""RMSNorm, alone or fused with the residual's addition."""

from __future__ import annotations

import torch

import octavo_kernels as kernels


class RMSNorm:
    """Owns the scale, [size]."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        self._eps = eps
        self.weight = torch.empty(size, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, size] -> [T, size]."""
        return kernels.rms_norm(x, self.weight, self._eps)

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Adds x to the residual in place; returns the residual's norm."""
        return kernels.fused_add_rms_norm(x, residual, self.weight, self._eps)
