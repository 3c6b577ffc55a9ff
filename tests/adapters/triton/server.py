"""A real tritonserver, run by `octavo triton serve`, and small clients of it."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families
from tritonclient import grpc

NUMPY = {"BYTES": np.object_, "BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64}
KINDS = {
    "input_ids": "INT64",
    "priority": "INT32",
    "stream": "BOOL",
    "exclude_input_in_output": "BOOL",
}


def write_model(
    repository: Path, name: str, options: dict[str, Any], config: str = "", backend: str = "octavo"
) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        f'backend: "{backend}"\ninstance_group [{{ count: 1, kind: KIND_CPU }}]\n{config}\n'
    )
    (version / "model.json").write_text(json.dumps(options))
    if backend == "python":
        (version / "model.py").write_text("from octavo_adapters.triton import TritonPythonModel\n")


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class TritonServer:
    """It writes to files, so it never waits for a reader."""

    def __init__(self, repository: Path, *models: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.log = Path(self._folder.name) / "log"
        self.http_port, self.grpc_port, self.metrics_port = free_ports(3)
        flags = [f"--{name}-port={getattr(self, f'{name}_port')}" for name in ("http", "grpc", "metrics")]
        flags += [f"--load-model={name}" for name in models]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [Path(sys.executable).parent / "octavo", "triton", "serve", f"--model-repository={repository}", *flags],
                stdout=log,
                stderr=log,
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def wait_ready(self, seconds: float = 180.0) -> Self:
        self.until(lambda: "serves at" in self.log.read_text(), seconds)
        return self

    def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120)

    def generate(self, model: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v2/models/{model}/generate", json=body, timeout=120)

    def ready(self, model: str) -> bool:
        return httpx.get(f"{self.url}/v2/models/{model}/ready").status_code == 200

    def metrics(self, model: str) -> dict[str, float]:
        """Samples of a model by name, summed over their other labels."""
        found: dict[str, float] = {}
        text = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics").text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("model") == model and "le" not in sample.labels:
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found

    def wait_idle(self, model: str) -> dict[str, float]:
        """Two looks a second apart, since metrics are copied once a second."""
        idle = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        self.until(lambda: not any(self.metrics(model)[name] for name in idle))
        time.sleep(1.2)
        found = self.metrics(model)
        assert not any(found[name] for name in idle)
        return found

    def cores(self) -> list[psutil.Process]:
        """The engines' processes."""
        found = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "octavo.engine.process" in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(90)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            for _ in range(2):
                self.process.send_signal(signal.SIGINT)
                time.sleep(0.2)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._folder.cleanup()


@dataclass
class Answer:
    """All responses to one streamed request."""

    responses: list[dict[str, list[Any]]] = field(default_factory=list)
    finals: list[bool] = field(default_factory=list)
    error: str | None = None

    @property
    def text(self) -> str:
        return "".join(response["text_output"][0] for response in self.responses)

    def joined(self, name: str) -> list[Any]:
        return [value for response in self.responses for value in response.get(name, [])]


def tensors(inputs: dict[str, Any]) -> list[Any]:
    made = []
    for name, value in inputs.items():
        kind = KINDS.get(name, "BOOL" if name.startswith("return_") else "BYTES")
        values = value if isinstance(value, list) else [value]
        values = [one.encode() if isinstance(one, str) else one for one in values]
        tensor = grpc.InferInput(name, [len(values)], kind)
        tensor.set_data_from_numpy(np.array(values, dtype=NUMPY[kind]))
        made.append(tensor)
    return made


class Stream:
    """One gRPC stream, one request on it."""

    def __init__(self, url: str, model: str, parameters: dict[str, Any] | None = None, **inputs: Any) -> None:
        self._queue: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client = grpc.InferenceServerClient(url)
        self._client.start_stream(callback=lambda result, error: self._queue.put((result, error)))
        self._client.async_stream_infer(model, tensors(inputs), parameters=parameters, enable_empty_final_response=True)
        self.answer = Answer()

    def next(self, seconds: float = 120.0) -> bool:
        """Takes a response; whether it was not the last."""
        result, error = self._queue.get(timeout=seconds)
        if error is not None:
            self.answer.error = str(error)
            return False
        response = result.get_response()
        values = {
            output.name: [
                one.decode() if isinstance(one, bytes) else one for one in result.as_numpy(output.name).tolist()
            ]
            for output in response.outputs
        }
        final = response.parameters["triton_final_response"].bool_param
        if values:
            self.answer.responses.append(values)
        self.answer.finals.append(final)
        return not final

    def run(self) -> Answer:
        while self.next():
            pass
        self.close()
        return self.answer

    def silent(self, seconds: float) -> bool:
        """Whether nothing more comes."""
        try:
            self._queue.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    def cancel(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def close(self) -> None:
        self._client.stop_stream()
        self._client.close()


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """`work(0..count-1)`, all at once; the first failure is raised."""
    results: list[Any] = [None] * count
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def sse(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
