"""MetricsBridge: an engine's metrics on Triton's /metrics, under the names they have everywhere."""

from __future__ import annotations

import logging
import threading
from typing import Any

from octavo_adapters.triton.engine_thread import EngineThread

logger = logging.getLogger("octavo.triton")

PERIOD_SECONDS = 1.0


class MetricsBridge:
    """Copies gauges and counters over, and observes again what the engine's histograms observed, once a second.

    Args:
        labels: model and version.
    """

    def __init__(self, pb_utils: Any, engine: EngineThread, labels: dict[str, str]) -> None:
        self._pb_utils = pb_utils
        self._engine = engine
        self._labels = labels
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
        self._totals: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="octavo-metrics", daemon=True)

    def start(self) -> None:
        self._engine.engine.metrics.keep_observations()
        self._thread.start()

    def stop(self) -> None:
        """Copies once more, and ends."""
        self._stopping.set()
        self._thread.join()
        self._metrics.clear()
        self._families.clear()

    def _run(self) -> None:
        try:
            while True:
                self._copy()
                if self._stopping.wait(PERIOD_SECONDS):
                    self._copy()
                    return
        except self._pb_utils.TritonModelException as error:
            logger.warning("metrics are not reported: %s", error)

    def _copy(self) -> None:
        families, observations = self._engine.collect()
        for family in families:
            if family.type == "histogram":
                self._family(family.name, family.documentation, "HISTOGRAM")
                self._metric(family.name, {}, buckets=_bounds(family))
                continue
            kind = family.type.upper()
            name = family.name + "_total" if kind == "COUNTER" else family.name
            self._family(name, family.documentation, kind)
            for sample in family.samples:
                if sample.name == name:
                    self._set(name, kind, sample.labels, sample.value)
        for name, value, times in observations:
            metric = self._metric(name, {})
            for _ in range(times):
                metric.observe(value)

    def _set(self, name: str, kind: str, labels: dict[str, str], value: float) -> None:
        own = {label: text for label, text in labels.items() if label != "model_name"}
        metric = self._metric(name, own)
        if kind == "GAUGE":
            metric.set(value)
            return
        key = (name, tuple(sorted(own.items())))
        added = value - self._totals.get(key, 0.0)
        if added > 0:
            metric.increment(added)
            self._totals[key] = value

    def _family(self, name: str, text: str, kind: str) -> None:
        if name not in self._families:
            family = self._pb_utils.MetricFamily
            self._families[name] = family(name=name, description=text, kind=getattr(family, kind))

    def _metric(self, name: str, labels: dict[str, str], **more: Any) -> Any:
        key = (name, tuple(sorted(labels.items())))
        if key not in self._metrics:
            self._metrics[key] = self._families[name].Metric(labels={**self._labels, **labels}, **more)
        return self._metrics[key]


def _bounds(family: Any) -> list[float]:
    bounds = [sample.labels["le"] for sample in family.samples if sample.name.endswith("_bucket")]
    return [float(bound) for bound in bounds if bound != "+Inf"]
