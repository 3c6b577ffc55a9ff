"""A real server in a process of its own, for tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

KEY = "sk-test-key"
_FIRST_LINE = re.compile(r"octavo \S+ serves (\S+) at (http://\S+)/v1\n")


class ServerProcess:
    """`python -m octavo.server MODEL --port 0 FLAGS`. It writes to files, so it never waits for a reader."""

    def __init__(self, model: Path | str, *flags: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._paths = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        with self._paths[0].open("wb") as stdout, self._paths[1].open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "octavo.server", str(model), "--port", "0", "--num-threads", "1", *flags],
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, "OCTAVO_API_KEY": KEY},
            )

    @property
    def stdout(self) -> str:
        return self._paths[0].read_text()

    @property
    def stderr(self) -> str:
        return self._paths[1].read_text()

    @property
    def url(self) -> str:
        """Where it listens; known once it is ready."""
        found = _FIRST_LINE.search(self.stdout)
        assert found, self.stdout + self.stderr
        return found[2]

    def wait_ready(self, seconds: float = 90.0) -> Self:
        deadline = time.monotonic() + seconds
        while not self.stdout.endswith("\n"):
            assert self.process.poll() is None, self.stderr
            assert time.monotonic() < deadline, self.stderr
            time.sleep(0.05)
        return self

    def wait_exit(self, seconds: float = 30.0) -> int:
        return self.process.wait(seconds)

    def core(self) -> psutil.Process:
        """The engine core's process."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)

    def metrics(self) -> dict[str, float]:
        """Every sample of octavo's metrics by `name` or `name{finished_reason}`."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(httpx.get(f"{self.url}/metrics").text):
            for sample in family.samples:
                if "le" not in sample.labels:
                    reason = sample.labels.get("finished_reason")
                    found[f"{sample.name}{{{reason}}}" if reason else sample.name] = sample.value
        return found

    def wait_idle(self, seconds: float = 5.0) -> dict[str, float]:
        """The metrics, once nothing runs or waits."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.metrics()
            if found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0:
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._folder.cleanup()
