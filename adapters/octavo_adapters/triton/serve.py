"""`octavo triton serve`: a tritonserver in the foreground, from its start to its clean end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from octavo import ConfigError
from octavo.commandline import Parsed
from octavo_adapters.triton.installation import Installation
from octavo_adapters.triton.serve_options import TritonServeOptions

_SHARED_MEMORY = Path("/dev/shm")
_POLL_SECONDS = 0.2
# Stubs see that their server is gone, and end their engines, within this time.
_LEFTOVER_SECONDS = 10.0


def run(parsed: Parsed) -> int:
    """Returns tritonserver's exit code; 0 after SIGINT or SIGTERM and a clean end.

    Raises:
        ConfigError: no tritonserver, or no such model repository.
    """
    options = parsed.get(TritonServeOptions)
    repository = Path(options.model_repository)
    if not repository.is_dir():
        raise ConfigError(f"there is no model repository '{repository}': give --model-repository", "model_repository")
    installation = Installation.find()
    with tempfile.TemporaryDirectory(prefix="octavo-triton-") as folder:
        backends = installation.lay_out(Path(folder))
        region = f"octavo_triton_{os.getpid()}_"
        command = [str(installation.server), *_arguments(options, repository.resolve(), backends, region)]
        with _no_leftovers(region):
            return _Foreground(command, installation.environment(os.environ), options).run()


def _arguments(options: TritonServeOptions, repository: Path, backends: Path, region: str) -> list[str]:
    return [
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        # Explicit, so that a model whose engine is dead can be unloaded, which turns its readiness red.
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in options.load_model or ["*"]),
        f"--http-address={options.host}",
        f"--grpc-address={options.host}",
        f"--http-port={options.http_port}",
        f"--grpc-port={options.grpc_port}",
        f"--metrics-port={options.metrics_port}",
        f"--exit-timeout-secs={options.exit_timeout}",
        f"--backend-config=python,shm-region-prefix-name={region}",
        f"--backend-config=python,shm-default-byte-size={options.shm_size}",
        f"--log-info={str(options.verbose).lower()}",
    ]


class _Foreground:
    """The child in a process group of its own: a Ctrl-C is the server's to hear, not its stubs'."""

    def __init__(self, command: list[str], environment: dict[str, str], options: TritonServeOptions) -> None:
        self._command = command
        self._environment = environment
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._signals = 0

    def run(self) -> int:
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._process = subprocess.Popen(self._command, env=self._environment, start_new_session=True)
            threading.Thread(target=self._announce, daemon=True).start()
            code = self._process.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._end_group()
        return 0 if self._signals and code >= 0 else code if code >= 0 else 128 - code

    def _on_signal(self, *_: object) -> None:
        self._signals += 1
        if self._process is None:
            raise KeyboardInterrupt
        if self._signals == 1:
            self._process.send_signal(signal.SIGINT)
        else:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _announce(self) -> None:
        url = f"http://{self._options.host}:{self._options.http_port}"
        while self._process is not None and self._process.poll() is None:
            if _answers(f"{url}/v2/health/ready"):
                sys.stdout.write(_lines(self._options, url))
                sys.stdout.flush()
                return
            time.sleep(_POLL_SECONDS)

    def _end_group(self) -> None:
        if self._process is None:
            return
        deadline = time.monotonic() + _LEFTOVER_SECONDS
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, 0)
                time.sleep(_POLL_SECONDS)
            os.killpg(self._process.pid, signal.SIGKILL)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def _no_leftovers(region: str) -> Iterator[None]:
    """A server that is killed leaves its shared memory behind."""
    try:
        yield
    finally:
        for file in _SHARED_MEMORY.glob(f"{region}*"):
            file.unlink(missing_ok=True)


def _lines(options: TritonServeOptions, url: str) -> str:
    model = (options.load_model or ["octavo"])[0]
    body = '{"text_input": "The capital of France is", "max_tokens": 16, "temperature": 0}'
    return (
        f"tritonserver serves at {url} (HTTP), {options.host}:{options.grpc_port} (gRPC); "
        f"metrics at http://{options.host}:{options.metrics_port}/metrics\n\n"
        f"curl {url}/v2/models/{model}/generate -d '{body}'\n\n"
        f"curl -N {url}/v2/models/{model}/generate_stream -d '{body[:-1]}, \"stream\": true}}'\n\n"
        "import tritonclient.http, numpy as np\n"
        f"client = tritonclient.http.InferenceServerClient('{options.host}:{options.http_port}')\n"
        f"print(client.is_model_ready('{model}'))  # streaming over gRPC: examples/triton_client.py\n"
    )
