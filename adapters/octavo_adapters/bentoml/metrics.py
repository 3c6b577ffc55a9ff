"""WorkerMetrics: the engines' metrics of all workers, as one text for BentoML's /metrics."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from octavo import AsyncEngine

PERIOD_SECONDS = 1.0
_SHARED = "PROMETHEUS_MULTIPROC_DIR"


class WorkerMetrics:
    """A request for metrics reaches one worker alone. Each writes its engine's once a second into the directory in
    which BentoML's workers share theirs; whoever is asked puts them together, with the label `worker_index`.

    Args:
        worker: this worker's number, from 1, as BentoML counts.
    """

    def __init__(self, engine: AsyncEngine, worker: int) -> None:
        self._engine = engine
        self._worker = worker
        folder = os.environ.get(_SHARED)
        self._folder = Path(folder) if folder else None

    async def keep_writing(self) -> None:
        """Until it is cancelled."""
        while True:
            self.write()
            await asyncio.sleep(PERIOD_SECONDS)

    def write(self) -> None:
        if self._folder is None or not self._folder.is_dir():
            return
        path = self._path(self._worker)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(self._own())
        fresh.replace(path)

    def remove(self) -> None:
        if self._folder is not None:
            self._path(self._worker).unlink(missing_ok=True)

    def text(self) -> str:
        """All workers' metrics, each family once."""
        texts = {self._worker: self._own().decode()}
        if self._folder is not None:
            for path in self._folder.glob("octavo-worker-*.prom"):
                worker = int(path.stem.rpartition("-")[2])
                with contextlib.suppress(FileNotFoundError):
                    texts.setdefault(worker, path.read_text())
        return generate_latest(_Merged(texts).registry).decode()

    def _own(self) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._engine.metrics)
        return generate_latest(registry)

    def _path(self, worker: int) -> Path:
        return (self._folder or Path()) / f"octavo-worker-{worker}.prom"


class _Merged:
    """A registry of several texts' families, each text's samples with its own label."""

    def __init__(self, texts: dict[int, str]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._texts = texts
        self.registry.register(self)

    def collect(self) -> list[Metric]:
        families: dict[str, Metric] = {}
        for worker, text in sorted(self._texts.items()):
            for family in text_string_to_metric_families(text):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels: dict[str, Any] = {**sample.labels, "worker_index": str(worker)}
                    merged.add_sample(sample.name, labels, sample.value)
        return list(families.values())
