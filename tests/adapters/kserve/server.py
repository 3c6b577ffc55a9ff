"""A real ModelServer: `python -m octavo_adapters.kserve`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

JSON = {"content-type": "application/json"}


class KServeServer:
    """It writes to a file, so it never waits for a reader."""

    def __init__(self, *flags: str, environ: Mapping[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        http, grpc = (one.getsockname()[1] for one in sockets)
        for one in sockets:
            one.close()
        self.url, self.grpc_url = f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}"
        ports = (f"--http_port={http}", f"--grpc_port={grpc}")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "octavo_adapters.kserve", *ports, *flags],
                env={**os.environ, **(environ or {})},
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

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
        self.until(lambda: self.status("/v2/health/ready") == 200)
        return self

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=JSON, timeout=120)

    def core(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def metrics(self) -> dict[str, float]:
        """Sums of octavo's samples by name; fails if a family is there twice."""
        found: dict[str, float] = {}
        names = []
        for family in text_string_to_metric_families(httpx.get(f"{self.url}/metrics").text):
            names.append(family.name)
            for sample in family.samples:
                if sample.name.startswith(("vllm:", "octavo:")) and "le" not in sample.labels:
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
        assert len(set(names)) == len(names)
        return found

    def wait_idle(self) -> dict[str, float]:
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        self.until(lambda: not any(self.metrics()[name] for name in names), 30)
        return self.metrics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._folder.cleanup()
