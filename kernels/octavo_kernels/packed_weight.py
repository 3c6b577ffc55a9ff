"""PackedWeight: a linear layer's weight, once and for all in the order the native product reads it."""

from __future__ import annotations

from typing import Any, Literal

import torch

from octavo_kernels.cpu.isa import SELECTION, Isa

GatedActivation = Literal["silu", "gelu_tanh"]
_STORES: dict[torch.dtype, int] = {torch.bfloat16: 0, torch.float32: 3}
_ACTIVATIONS: dict[str, int] = {"silu": 1, "gelu_tanh": 2}
_ALIGNMENT = 64


class PackedWeight:
    """bfloat16 weights for AMX; products are summed in float32.

    Args:
        weight: [outputs, inputs]; not needed any more afterwards.
        bias: [outputs], added to every product.
        gated: the upper half of the rows are a gate, the lower half what it is multiplied with.
    """

    def __init__(self, native: Any, weight: torch.Tensor, bias: torch.Tensor | None, *, gated: bool) -> None:
        self.outputs, self.inputs = weight.shape
        self.gated = gated
        self._native = native
        self._bias = bias.contiguous() if bias is not None else None
        self._bias_address = self._bias.data_ptr() if self._bias is not None else 0
        size = native.packed_size(self.outputs, self.inputs)
        room = torch.empty(size + _ALIGNMENT // 2, dtype=torch.bfloat16)
        start = -room.data_ptr() % _ALIGNMENT // 2
        self._data = room[start : start + size]
        self._address = self._data.data_ptr()
        native.pack_weight(self._address, self.outputs, self.inputs, weight.data_ptr(), weight.stride(0), gated)

    def multiply(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """x W^T + bias: bfloat16 [T, inputs] -> out [T, outputs], bfloat16, or float32 that was never rounded.

        Raises:
            ValueError: a shape or a dtype is another, or rows of `out` are not contiguous.
        """
        if self.gated:
            raise ValueError("a gated weight is multiplied with its activation: call multiply_gated")
        self._multiply(x, out, self.outputs, _STORES.get(out.dtype, -1))

    def multiply_gated(self, x: torch.Tensor, activation: GatedActivation, out: torch.Tensor) -> None:
        """activation(x G^T) * x U^T, G and U being the weight's halves: bfloat16 [T, inputs] -> out [T, outputs / 2].

        Raises:
            ValueError: as `multiply`.
        """
        if not self.gated:
            raise ValueError("the weight was not packed as gated")
        self._multiply(x, out, self.outputs // 2, _ACTIVATIONS[activation] if out.dtype is torch.bfloat16 else -1)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, as in an embedding: int64 [T] -> bfloat16 [T, inputs].

        Raises:
            IndexError: an id is out of range.
            ValueError: the weight is gated, or ids are not int64 [T].
        """
        if self.gated:
            raise ValueError("a gated weight has no rows to look up")
        if ids.dtype is not torch.int64 or ids.dim() != 1:
            raise ValueError(f"ids must be int64 [T], but are {ids.dtype} {list(ids.shape)}")
        if ids.shape[0] and not 0 <= int(ids.min()) <= int(ids.max()) < self.outputs:
            raise IndexError(f"row {int(ids.min())} or {int(ids.max())} of a weight of {self.outputs} rows")
        ids = ids.contiguous()
        out = torch.empty(ids.shape[0], self.inputs, dtype=torch.bfloat16)
        self._native.unpack_rows(self._address, self.outputs, self.inputs, ids.data_ptr(), ids.shape[0], out.data_ptr())
        return out

    def _multiply(self, x: torch.Tensor, out: torch.Tensor, width: int, epilogue: int) -> None:
        shape = x.shape
        if x.dtype is not torch.bfloat16 or len(shape) != 2 or shape[1] != self.inputs:
            raise ValueError(f"x must be bfloat16 [T, {self.inputs}], but is {x.dtype} {list(shape)}")
        rows = shape[0]
        stride, unit = x.stride()
        if unit != 1:
            x = x.contiguous()
            stride = self.inputs
        out_stride, out_unit = out.stride()
        if epilogue < 0 or out.shape != (rows, width) or out_unit != 1:
            raise ValueError(
                f"out must be [{rows}, {width}] with contiguous rows, of a dtype that this product writes, but is "
                f"{out.dtype} {list(out.shape)}"
            )
        self._native.multiply(
            self._address,
            self.outputs,
            self.inputs,
            x.data_ptr(),
            stride,
            rows,
            out.data_ptr(),
            out_stride,
            self._bias_address,
            epilogue,
        )


def pack_weight(weight: torch.Tensor, bias: torch.Tensor | None = None, *, gated: bool = False) -> PackedWeight | None:
    """The weight packed, or None where there is no native product for it: then PyTorch's is used, on `weight` as it is.

    Today there is one for bfloat16 on a CPU with AMX. Float32 is for exactness and stays with PyTorch.

    Raises:
        ValueError: the bias does not fit the weight.
    """
    if weight.device.type != "cpu" or weight.dtype is not torch.bfloat16 or SELECTION.isa is not Isa.AMX:
        return None
    if weight.dim() != 2 or not weight.numel() or weight.stride(1) != 1 or (gated and weight.shape[0] % 2):
        return None
    if bias is not None and (bias.dtype is not weight.dtype or bias.shape != weight.shape[:1]):
        raise ValueError(
            f"bias must be {weight.dtype} [{weight.shape[0]}], as the weight is, but is {bias.dtype} {list(bias.shape)}"
        )
    return PackedWeight(SELECTION.native, weight, bias, gated=gated)
