"""Pictures of results. matplotlib is an extra: `report.check_outputs` has asked for it before a run begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.bench.latency import LatencyResult
    from octavo.bench.serve import ServeResult
    from octavo.bench.throughput import ThroughputResult

_QUEUED, _PREFILL, _DECODE = "#d9d9d9", "#f28e2b", "#4e79a7"


def draw_throughput(result: ThroughputResult, path: str) -> None:
    """One line a request: waiting, prefill, decode, over the run's seconds."""
    with _figure(path, 1) as (axes,):
        for row, times in enumerate(result.requests):
            marks = [0.0, times.scheduled, times.first_token, times.last_token]
            for start, end, colour in zip(marks, marks[1:], (_QUEUED, _PREFILL, _DECODE), strict=False):
                if start is not None and end is not None:
                    axes.barh(row, end - start, left=start, color=colour, height=0.8)
        for colour, label in ((_QUEUED, "waiting"), (_PREFILL, "prefill"), (_DECODE, "decode")):
            axes.barh(0, 0, color=colour, label=label)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, -0.25), ncols=3, frameon=False)
        axes.invert_yaxis()
        axes.set(
            xlim=(0, None),
            xlabel="seconds",
            ylabel="request",
            title=f"{result.output_tokens_per_second:,.0f} output tok/s, mean batch {result.mean_batch_size:.1f}",
        )


def draw_latency(result: LatencyResult, path: str) -> None:
    """Decode speed of each sample beside what reading the weights once a token allows."""
    with _figure(path, 1) as (axes,):
        speeds = [sample.decode_tokens_per_second for sample in result.samples]
        axes.bar([str(number) for number in range(1, len(speeds) + 1)], speeds, color=_DECODE)
        axes.axhline(
            result.memory_bytes_per_second / result.weight_bytes,
            color=_PREFILL,
            linestyle="--",
            label="bandwidth bound",
        )
        axes.legend()
        axes.set(
            xlabel="sample",
            ylabel="decode tok/s",
            title=f"{result.decode_tokens_per_second:,.1f} tok/s, {result.bandwidth_share:.0%} of the bandwidth",
        )


def draw_serve(result: ServeResult, path: str) -> None:
    """Cumulative distributions of time to first token and inter-token latency."""
    with _figure(path, 2) as (left, right):
        _cumulative(left, result.ttft_samples, "time to first token, ms")
        _cumulative(right, result.itl_samples, "inter-token latency, ms")
        left.set_title(f"{result.output_tokens_per_second:,.0f} output tok/s at {result.concurrency} clients")


def _cumulative(axes: Any, seconds: Sequence[float], label: str) -> None:
    ordered = [value * 1000 for value in sorted(seconds)]
    axes.plot(ordered, [(rank + 1) / len(ordered) for rank in range(len(ordered))], color=_DECODE)
    axes.set(xlabel=label, ylabel="share of samples", ylim=(0, 1.02))


@contextmanager
def _figure(path: str, columns: int) -> Iterator[tuple[Any, ...]]:
    # Without pyplot: no window system, no global state.
    figure = import_module("matplotlib.figure").Figure(figsize=(5.5 * columns, 4.5), layout="constrained")
    axes = tuple(figure.subplots(1, columns, squeeze=False)[0])
    yield axes
    figure.savefig(path, format="png", dpi=120)
