"""Row operations on [R, V] float32 matrices. On CPU numpy's kernels for these are 4 to 20 times faster than torch's."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import octavo_kernels as kernels


def argmax(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The first of each row's largest values and its column: float32 [R], int64 [R]. A NaN counts as largest."""
    return kernels.argmax(matrix)


def largest(matrix: Tensor, count: int) -> Tensor:
    """Each row's `count` largest values, in descending order: float32 [R, count]."""
    width = matrix.shape[1]
    if matrix.device.type != "cpu":
        if count < width:
            return matrix.topk(count, dim=-1).values
        return matrix.sort(dim=-1, descending=True).values
    values = matrix.numpy()
    if count < width:
        values = np.partition(values, width - count, axis=-1)[:, width - count :]
    return torch.from_numpy(np.sort(values, axis=-1)[:, ::-1].copy())


def zero_below(matrix: Tensor, thresholds: Tensor) -> None:
    """Sets every value of row r under `thresholds[r]` to 0, in place."""
    if matrix.device.type == "cpu":
        values = matrix.numpy()
        np.copyto(values, np.float32(0), where=values < thresholds.numpy()[:, None])
    else:
        matrix.masked_fill_(matrix < thresholds[:, None], 0.0)
