"""The linear layers of one decode step: packed products beside PyTorch's, alternating, each beside its limit.

    python benchmarks/gemm.py [--threads 2] [--rows 1 4 8 16 32 128 512]

Shapes are SmolLM2-135M's (30 layers, head included, at most 32 rows of it); every layer has weights of its own, so that
they come from memory as in a real step. GB/s counts the weights once; the read bandwidth is measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from octavo.bench.bandwidth import read_bandwidth
from octavo_kernels import PackedWeight, pack_weight

HIDDEN, INNER, QKV, VOCABULARY, LAYERS = 576, 1536, 960, 49152, 30
SHAPES = [(QKV, HIDDEN, False), (HIDDEN, HIDDEN, False), (2 * INNER, HIDDEN, True), (HIDDEN, INNER, False)]
HEAD_ROWS = 32


def seconds(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def step(rows: int, plain: list[torch.Tensor], packed: list[PackedWeight]) -> tuple[float, float]:
    """Median seconds of all layers: (packed, PyTorch)."""
    inputs = {size: torch.randn(rows, size).bfloat16() for size in (HIDDEN, INNER)}
    few = inputs[HIDDEN][:HEAD_ROWS]

    outputs = {size: torch.empty(rows, size).bfloat16() for size in (HIDDEN, INNER, QKV)}
    logits = torch.empty(len(few), VOCABULARY)

    def ours() -> None:
        for weight in packed[:-1]:
            if weight.gated:
                weight.multiply_gated(inputs[weight.inputs], "silu", outputs[INNER])
            else:
                weight.multiply(inputs[weight.inputs], outputs[weight.outputs])
        packed[-1].multiply(few, logits)

    def theirs() -> None:
        for weight in plain[:-1]:
            F.linear(inputs[weight.shape[1]], weight)
        F.linear(few, plain[-1])

    times = [(seconds(ours), seconds(theirs)) for _ in range(7)]
    return statistics.median(one for one, _ in times), statistics.median(other for _, other in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32, 128, 512])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    shapes = [*SHAPES * LAYERS, (VOCABULARY, HIDDEN, False)]
    plain = [torch.randn(outputs, inputs).mul_(0.02).bfloat16() for outputs, inputs, _ in shapes]
    packed = [pack_weight(weight, gated=gated) for weight, (_, _, gated) in zip(plain, shapes, strict=True)]
    usable = [weight for weight in packed if weight is not None]
    if len(usable) < len(plain):
        raise SystemExit("there is no packed product for this CPU: it needs AMX and the native kernels")
    bandwidth = read_bandwidth("cpu")
    size = sum(weight.nbytes for weight in plain)
    table = Table(title=f"{given.threads} threads; memory reads {bandwidth / 1e9:.1f} GB/s")
    for column in ("rows", "packed ms", "GB/s", "of bandwidth", "TFLOP/s", "PyTorch ms", "ratio"):
        table.add_column(column, justify="right")
    for rows in given.rows:
        ours, theirs = step(rows, plain, usable)
        work = sum(2 * min(rows, HEAD_ROWS if n == VOCABULARY else rows) * n * k for n, k, _ in shapes)
        table.add_row(
            str(rows),
            f"{ours * 1e3:.2f}",
            f"{size / ours / 1e9:.1f}",
            f"{size / ours / bandwidth:.0%}",
            f"{work / ours / 1e12:.2f}",
            f"{theirs * 1e3:.2f}",
            f"{theirs / ours:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
