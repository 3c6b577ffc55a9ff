"""A real `bentoml serve`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

BENTOML = str(Path(sys.executable).parent / "bentoml")


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "BENTOML_HOME": str(home), "BENTOML_DO_NOT_TRACK": "true", "HF_HUB_OFFLINE": "1"}


class BentoServer:
    """It writes to a file, so it never waits for a reader."""

    def __init__(self, service: str, home: Path, folder: Path) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [BENTOML, "serve", service, "--host", "127.0.0.1", "--port", str(port)],
                cwd=folder,
                env=environment(home),
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def client(self, **options: float) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=options.get("timeout", 120.0))

    def until(self, condition: Callable[[], object], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def status(self, path: str) -> int:
        try:
            return httpx.get(self.url + path, timeout=30).status_code
        except httpx.TransportError:
            return 0

    def wait_ready(self) -> Self:
        self.until(lambda: self.status("/readyz") == 200)
        return self

    def cores(self) -> list[psutil.Process]:
        found = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "octavo.engine.process" in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def metrics(self) -> dict[tuple[str, str], float]:
        """(name, worker) -> the sum of its samples; fails if a family is there twice."""
        found: dict[tuple[str, str], float] = {}
        names = []
        for family in text_string_to_metric_families(httpx.get(f"{self.url}/metrics").text):
            names.append(family.name)
            for sample in family.samples:
                if sample.name.startswith(("vllm:", "octavo:")) and "le" not in sample.labels:
                    key = (sample.name, sample.labels["worker_index"])
                    found[key] = found.get(key, 0.0) + sample.value
        assert len(set(names)) == len(names)
        return found

    def wait_idle(self) -> dict[tuple[str, str], float]:
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        self.until(lambda: not any(value for (name, _), value in self.metrics().items() if name in names), 30)
        return self.metrics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            everyone = psutil.Process(self.process.pid).children(recursive=True)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
            for one in psutil.wait_procs(everyone, timeout=10)[1]:
                one.kill()
        self._folder.cleanup()
