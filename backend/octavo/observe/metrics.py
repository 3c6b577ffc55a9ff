"""What an engine counts, in Prometheus' format. Names and buckets are vLLM's where the meaning is the same."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from octavo.core.request import SchedulerStats
from octavo.outputs import FinishReason

_KEPT_OBSERVATIONS: Final = 100_000

EndReason = FinishReason | Literal["error"]

_FIRST_TOKEN_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_BUCKETS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_LENGTH_BUCKETS: Final = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
_REASONS: Final[tuple[EndReason, ...]] = ("stop", "length", "abort", "error")


class Distribution:
    """A histogram that one thread fills: an observation is a bisection and three additions, no lock.

    Args:
        bounds: upper bounds of the buckets, ascending, each inclusive; one more bucket takes what is above.
    """

    __slots__ = ("_bounds", "_counts", "_sum", "observations")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self.observations: deque[tuple[float, int]] | None = None
        """What was observed, for whoever takes it away; None: it is not kept."""

    def observe(self, value: float, times: int = 1) -> None:
        if self.observations is not None:
            self.observations.append((value, times))
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def sum(self) -> float:
        return self._sum

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations at or below it) for every bucket, the last being +Inf."""
        rows: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            below += count
            rows.append((bound, below))
        return rows


class _Total:
    """A counter fed with somebody else's running total; it goes on counting when that restarts from 0."""

    __slots__ = ("_last", "value")

    def __init__(self) -> None:
        self.value = 0
        self._last = 0

    def follow(self, total: int) -> None:
        self.value += total - self._last if total >= self._last else total
        self._last = total


class EngineMetrics(Collector):
    """One engine's metrics, on a registry of their own, labelled with the model's name.

    Recording is plain arithmetic, for it happens for every sequence in every step; Prometheus' objects are built when
    somebody scrapes. Record and render on one thread (the event loop's).

    Args:
        model_name: value of the label `model_name`.
        registry: where to register; a new one, with the process's own CPU and memory figures, if None.
    """

    def __init__(self, model_name: str, registry: CollectorRegistry | None = None) -> None:
        self._model_name = model_name
        self._stats = SchedulerStats()
        self._preemptions = _Total()
        self._prefix_queries = _Total()
        self._prefix_hits = _Total()
        self._prompt_tokens = 0
        self._restarts = 0
        self._refused = 0
        self._generation_tokens = 0
        self._finished = dict.fromkeys(_REASONS, 0)
        self._first_token = Distribution(_FIRST_TOKEN_BUCKETS)
        self._inter_token = Distribution(_TOKEN_BUCKETS)
        self._end_to_end = Distribution(_REQUEST_BUCKETS)
        self._queue = Distribution(_REQUEST_BUCKETS)
        self._request_prompt = Distribution(_LENGTH_BUCKETS)
        self._request_generation = Distribution(_LENGTH_BUCKETS)
        self._cache_config: dict[str, str] | None = None
        if registry is None:
            registry = CollectorRegistry(auto_describe=False)
            ProcessCollector(registry=registry)
        self.registry = registry
        registry.register(self)

    @property
    def stats(self) -> SchedulerStats:
        """The latest snapshot recorded."""
        return self._stats

    def record_cache(self, num_blocks: int, block_size: int) -> None:
        """The shape of the KV cache, once the core has sized it; `block_size` in tokens."""
        self._cache_config = {"block_size": str(block_size), "num_gpu_blocks": str(num_blocks)}

    def record_restart(self) -> None:
        """The core died, and another takes its place."""
        self._restarts += 1

    def record_refused(self) -> None:
        """A request was not taken, for too much waits."""
        self._refused += 1

    def record_stats(self, stats: SchedulerStats) -> None:
        """The scheduler's snapshot after a step. Its counters are totals; a total that falls is a restarted core."""
        self._stats = stats
        self._preemptions.follow(stats.num_preemptions)
        self._prefix_queries.follow(stats.prefix_cache_queries)
        self._prefix_hits.follow(stats.prefix_cache_hits)

    def record_first_token(self, prompt_tokens: int, ttft: float, queue: float | None = None) -> None:
        """A request's prompt is computed: its length, seconds from arrival to first token, seconds it waited."""
        self._prompt_tokens += prompt_tokens
        self._first_token.observe(ttft)
        if queue is not None:
            self._queue.observe(queue)

    def record_tokens(self, count: int, itl: float | None = None) -> None:
        """A sequence got `count` tokens, its first included, `itl` seconds after those before (None: its first)."""
        self._generation_tokens += count
        if itl is not None:
            self._inter_token.observe(itl / count, count)

    def record_finished(self, reason: EndReason, e2e: float, prompt_tokens: int, generation_tokens: int) -> None:
        """A request ended, `e2e` seconds after its arrival; generated tokens over all its sequences.

        Reason `error`: the engine failed it.
        """
        self._finished[reason] += 1
        self._end_to_end.observe(e2e)
        self._request_prompt.observe(prompt_tokens)
        self._request_generation.observe(generation_tokens)

    def keep_observations(self) -> None:
        """From now on single observations of the histograms are kept for `take_observations`, the latest 100,000."""
        for _, _, filled in self._distributions():
            filled.observations = deque(maxlen=_KEPT_OBSERVATIONS)

    def take_observations(self) -> list[tuple[str, float, int]]:
        """(histogram, value, times) of what was observed since the last call."""
        taken = []
        for name, _, filled in self._distributions():
            while filled.observations:
                taken.append((name, *filled.observations.popleft()))
        return taken

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def render(self) -> tuple[bytes, str]:
        """The whole registry as (body, content type) of an answer to a scrape."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _gauges(self) -> Iterator[Metric]:
        stats = self._stats
        for name, text, value in (
            ("vllm:num_requests_running", "Requests in the running batch.", stats.num_running),
            ("vllm:num_requests_waiting", "Requests waiting to be scheduled.", stats.num_waiting),
            ("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", stats.kv_usage),
            (
                "octavo:kv_waste_perc",
                "Share of the slots in used KV blocks that hold no token, 0 to 1.",
                stats.kv_waste,
            ),
        ):
            gauge = GaugeMetricFamily(name, text, labels=["model_name"])
            gauge.add_metric([self._model_name], value)
            yield gauge
        if self._cache_config is not None:
            info = GaugeMetricFamily(
                "vllm:cache_config_info", "Shape of the KV cache.", labels=["model_name", *self._cache_config]
            )
            info.add_metric([self._model_name, *self._cache_config.values()], 1)
            yield info

    def _counters(self) -> Iterator[Metric]:
        for name, text, value in (
            ("vllm:num_preemptions", "Preemptions of running sequences.", self._preemptions.value),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", self._prefix_queries.value),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", self._prefix_hits.value),
            ("vllm:prompt_tokens", "Prompt tokens of requests that got their first token.", self._prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated.", self._generation_tokens),
            ("octavo:core_restarts", "Times the core died and another took its place.", self._restarts),
            ("octavo:requests_refused", "Requests not taken, for too much was waiting.", self._refused),
        ):
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            counter.add_metric([self._model_name], value)
            yield counter
        finished = CounterMetricFamily(
            "vllm:request_success", "Finished requests by reason.", labels=["model_name", "finished_reason"]
        )
        for reason, count in self._finished.items():
            finished.add_metric([self._model_name, reason], count)
        yield finished

    def _distributions(self) -> tuple[tuple[str, str, Distribution], ...]:
        return (
            ("vllm:time_to_first_token_seconds", "From arrival to first token.", self._first_token),
            ("vllm:inter_token_latency_seconds", "Between two tokens of a sequence.", self._inter_token),
            ("vllm:e2e_request_latency_seconds", "From arrival to end.", self._end_to_end),
            ("vllm:request_queue_time_seconds", "From arrival to first being scheduled.", self._queue),
            ("vllm:request_prompt_tokens", "Prompt tokens of finished requests.", self._request_prompt),
            ("vllm:request_generation_tokens", "Tokens generated by finished requests.", self._request_generation),
        )

    def _histograms(self) -> Iterator[Metric]:
        for name, text, filled in self._distributions():
            histogram = HistogramMetricFamily(name, text, labels=["model_name"])
            histogram.add_metric([self._model_name], buckets=filled.cumulative(), sum_value=filled.sum)
            yield histogram
