"""PackedWeight: a linear layer's weight, once and for all in the order the native product reads it."""

from __future__ import annotations

from typing import Any, Literal

import torch

from octavo_kernels.cpu.isa import SELECTION, Isa

GatedActivation = Literal["silu", "gelu_tanh"]
_STORE, _STORE_FLOAT32 = 0, 3
_ACTIVATIONS: dict[str, int] = {"silu": 1, "gelu_tanh": 2}
_ALIGNMENT = 64


class PackedWeight:
    """bfloat16 weights for AMX; products are summed in float32.

    Args:
        weight: [outputs, inputs]; not needed any more afterwards.
        gated: the upper half of the rows are a gate, the lower half what it is multiplied with.
    """

    def __init__(self, native: Any, weight: torch.Tensor, *, gated: bool) -> None:
        self.outputs, self.inputs = weight.shape
        self.gated = gated
        self._native = native
        size = native.packed_size(self.outputs, self.inputs)
        room = torch.empty(size + _ALIGNMENT // 2, dtype=torch.bfloat16)
        start = -room.data_ptr() % _ALIGNMENT // 2
        self._data = room[start : start + size]
        self._address = self._data.data_ptr()
        native.pack_weight(self._address, self.outputs, self.inputs, weight.data_ptr(), weight.stride(0), gated)

    def multiply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, *, dtype: torch.dtype = torch.bfloat16
    ) -> torch.Tensor:
        """x W^T + bias: bfloat16 [T, inputs] -> [T, outputs], in bfloat16 or, not rounded, in float32."""
        if self.gated:
            raise ValueError("a gated weight is multiplied with its activation: call multiply_gated")
        out = torch.empty(len(x), self.outputs, dtype=dtype)
        self._multiply(x, out, bias, _STORE_FLOAT32 if dtype is torch.float32 else _STORE)
        return out

    def multiply_gated(
        self, x: torch.Tensor, activation: GatedActivation, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """activation(x G^T) * x U^T, G and U being the weight's halves: bfloat16 [T, inputs] -> [T, outputs / 2]."""
        if not self.gated:
            raise ValueError("the weight was not packed as gated")
        out = torch.empty(len(x), self.outputs // 2, dtype=torch.bfloat16)
        self._multiply(x, out, bias, _ACTIVATIONS[activation])
        return out

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, as in an embedding: int64 [T] -> bfloat16 [T, inputs].

        Raises:
            IndexError: an id is out of range.
        """
        if self.gated:
            raise ValueError("a gated weight has no rows to look up")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.outputs:
            raise IndexError(f"row {int(ids.min())} or {int(ids.max())} of a weight of {self.outputs} rows")
        ids = ids.contiguous()
        out = torch.empty(len(ids), self.inputs, dtype=torch.bfloat16)
        self._native.unpack_rows(self._address, self.outputs, self.inputs, ids.data_ptr(), len(ids), out.data_ptr())
        return out

    def _multiply(self, x: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None, epilogue: int) -> None:
        if x.dtype is not torch.bfloat16 or x.dim() != 2 or x.shape[1] != self.inputs:
            raise ValueError(f"x must be bfloat16 [T, {self.inputs}], but is {x.dtype} {list(x.shape)}")
        if x.stride(1) != 1:
            x = x.contiguous()
        if bias is not None and (bias.dtype is not torch.bfloat16 or bias.shape != (self.outputs,)):
            raise ValueError(f"bias must be bfloat16 [{self.outputs}], but is {bias.dtype} {list(bias.shape)}")
        self._native.multiply(
            self._address,
            self.outputs,
            self.inputs,
            x.data_ptr(),
            x.stride(0),
            len(x),
            out.data_ptr(),
            out.stride(0),
            0 if bias is None else bias.data_ptr(),
            epilogue,
        )


def pack_weight(weight: torch.Tensor, *, gated: bool = False) -> PackedWeight | None:
    """The weight packed, or None where there is no native product for it: then PyTorch's is used, on `weight` as it is.

    Today there is one for bfloat16 on a CPU with AMX. Float32 is for exactness and stays with PyTorch.
    """
    if weight.device.type != "cpu" or weight.dtype is not torch.bfloat16 or SELECTION.isa is not Isa.AMX:
        return None
    if weight.dim() != 2 or weight.stride(1) != 1 or (gated and weight.shape[0] % 2):
        return None
    return PackedWeight(SELECTION.native, weight, gated=gated)
