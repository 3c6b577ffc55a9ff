"""The adapter on the SDK's real ModelServer, asked by real clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from octavo import LLM, SamplingParams
from octavo.tensors import INPUTS, OUTPUTS
from tests.adapters.kserve.server import KServeServer
from tests.tiny import save_tiny_llama

pytestmark = [pytest.mark.server, pytest.mark.slow]

PROMPT = "the quick brown fox"
FLAGS = (
    "--model_name=tiny",
    "--dtype=float32",
    "--num-threads=1",
    "--kv_cache_memory_bytes=134217728",
    "--max-num-seqs=8",
)
ENGINE = {"dtype": "float32", "num_threads": 1, "kv_cache_memory_bytes": 4 << 20, "max_num_seqs": 8}
PROBES = ("/", "/v2/health/live", "/v2/health/ready", "/v2/models/tiny/ready", "/ready")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a storage initialiser mounts: a directory around the model's."""
    folder = tmp_path_factory.mktemp("mnt")
    save_tiny_llama(folder / "models" / "tiny", context=8192)
    return folder / "models"


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[KServeServer]:
    with KServeServer(f"--model_dir={models}", *FLAGS) as one:
        one.until(lambda: one.status("/v1/version") != 0)
        # Until a warm-up token has come out every probe is red, and says why.
        assert [one.status(path) for path in PROBES] == [503] * len(PROBES)
        assert "the engine is starting" in httpx.get(one.url + "/v2/health/ready").text
        yield one.wait_ready()


@pytest.fixture(scope="module")
def llm(models: Path) -> Iterator[LLM]:
    with LLM(str(models / "tiny"), **ENGINE) as engine:
        yield engine


def expected(llm: LLM, prompt: Any = PROMPT, **params: Any) -> Any:
    wanted = SamplingParams(**{"temperature": 0, "max_tokens": 16, "ignore_eos": True, **params})
    return llm.generate(prompt, wanted, use_tqdm=False)[0]


def test_probes_are_green(server: KServeServer) -> None:
    assert [server.status(path) for path in (*PROBES, "/health", "/v1/models/tiny")] == [200] * 7
    assert server.status("/v2/models/other/ready") == 404


@pytest.mark.parametrize("prefix", ["/openai/v1", "/v1"])
def test_the_openai_client(server: KServeServer, llm: LLM, prefix: str) -> None:
    with openai.OpenAI(base_url=server.url + prefix, api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 16, "temperature": 0}
        asked["extra_body"] = {"ignore_eos": True}
        whole = client.completions.create(**asked)
        assert whole.choices[0].text == expected(llm).outputs[0].text
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 16
        chunks = client.completions.create(**asked, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
        chat = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4, temperature=0, stream=True
        )
        assert list(chat)[-1].choices[0].finish_reason in ("length", "stop")
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.completions.create(model="other", prompt="x")


def test_v1_models_is_kserves_too(server: KServeServer) -> None:
    assert httpx.get(f"{server.url}/v1/models").json()["models"] == ["tiny"]
    one = httpx.get(f"{server.url}/v1/models/tiny").json()
    assert (one["name"], one["ready"], one["id"]) == ("tiny", True, "tiny")


def test_predict(server: KServeServer, llm: LLM) -> None:
    params = {"temperature": 0, "max_tokens": 9, "ignore_eos": True}
    instances = ["a", {"prompt": PROMPT, **params}, {"text_input": "the dog", "parameters": params}]
    first, second, third = server.post("/v1/models/tiny:predict", {"instances": instances}).json()["predictions"]
    assert isinstance(first, str)
    assert second == {
        "text_output": expected(llm, max_tokens=9).outputs[0].text,
        "finish_reason": "length",
        "num_output_tokens": 9,
    }
    assert third["text_output"] == expected(llm, "the dog", max_tokens=9).outputs[0].text


def test_infer_over_rest(server: KServeServer, llm: LLM) -> None:
    """KServe's protocol by hand, and Triton's client, which sends and wants binary data."""
    want = expected(llm, n=2, temperature=0.8, seed=3).outputs
    body = {
        "id": "mine",
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [PROMPT]},
            {"name": "exclude_input_in_output", "datatype": "BOOL", "shape": [1], "data": [True]},
            {"name": "return_num_output_tokens", "datatype": "BOOL", "shape": [1], "data": [True]},
        ],
        "parameters": {"n": 2, "temperature": 0.8, "seed": 3, "ignore_eos": True},
    }
    answer = server.post("/v2/models/tiny/infer", body).json()
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    assert outputs == {"text_output": [one.text for one in want], "num_output_tokens": [16, 16]}
    assert answer["id"] == "mine"
    with triton_http.InferenceServerClient(server.url.removeprefix("http://")) as client:
        assert client.is_server_live()
        assert client.is_model_ready("tiny")
        metadata = client.get_model_metadata("tiny")
        assert [tensor["name"] for tensor in metadata["inputs"]] == [spec.name for spec in INPUTS]
        assert [tensor["datatype"] for tensor in metadata["outputs"]] == [spec.datatype for spec in OUTPUTS]
        ids = llm.get_tokenizer().encode(PROMPT)
        tensor = triton_http.InferInput("input_ids", [len(ids)], "INT64")
        tensor.set_data_from_numpy(np.array(ids))
        result = client.infer("tiny", [tensor], parameters={"temperature": 0, "ignore_eos": True})
        assert result.as_numpy("output_ids").tolist() == expected(llm).outputs[0].token_ids


def test_infer_over_grpc(server: KServeServer, llm: LLM) -> None:
    """BYTES come as bytes, parameters as protobuf values; with Triton's client and with KServe's."""
    want = expected(llm).outputs[0].text
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        tensor = triton_grpc.InferInput("text_input", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_))
        parameters = {"temperature": "0", "max_tokens": 16, "ignore_eos": True}
        result = client.infer("tiny", [tensor], parameters=parameters)
        assert result.as_numpy("text_output").tolist() == [(PROMPT + want).encode()]
        with pytest.raises(triton_grpc.InferenceServerException, match="did you mean 'max_tokens'") as caught:
            client.infer("tiny", [tensor], parameters={"max_tokenz": 1})
        assert "INVALID_ARGUMENT" in str(caught.value.status())

    # KServe's and Triton's clients register the same protobuf names: one process has room for one of them.
    script = (
        "import asyncio, json, kserve, sys\n"
        "async def main():\n"
        "    client = kserve.InferenceGRPCClient(sys.argv[1])\n"
        "    inputs = [kserve.InferInput('text_input', [1], 'BYTES', [sys.argv[2].encode()])]\n"
        "    parameters = {'max_tokens': 16, 'ignore_eos': True, 'seed': 1}\n"
        "    response = await client.infer(kserve.InferRequest('tiny', inputs, parameters=parameters))\n"
        "    print(json.dumps(response.outputs[0].as_numpy().reshape(-1)[0].decode()))\n"
        "asyncio.run(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, server.grpc_url, PROMPT],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    sampled = expected(llm, temperature=1.0, seed=1).outputs[0].text
    assert json.loads(ran.stdout.splitlines()[-1]) == PROMPT + sampled


def test_the_generate_extension(server: KServeServer, llm: LLM) -> None:
    want = expected(llm).outputs[0].text
    body: dict[str, Any] = {"text_input": PROMPT, "parameters": {"temperature": 0, "ignore_eos": True}}
    whole = server.post("/v2/models/tiny/generate", {**body, "return_finish_reason": True}).json()
    assert whole == {
        "model_name": "tiny",
        "model_version": "1",
        "text_output": PROMPT + want,
        "finish_reason": "length",
    }
    streamed = server.post("/v2/models/tiny/generate_stream", body)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert "".join(event["text_output"] for event in events) == want
    assert len(events) > 1


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/models/tiny:predict", {"instances": []}, 400, "at least one"),
        ("/v1/models/tiny:predict", {"instances": [5]}, 400, r"instances[0] must be"),
        ("/v1/models/tiny:predict", {"instances": [{"max_tokens": 5}]}, 400, "needs one text"),
        ("/v1/models/tiny:predict", {"instances": [{"prompt": "x", "max_tokenz": 5}]}, 400, "did you mean"),
        ("/v2/models/tiny/infer", {"inputs": []}, 400, "text_input is required"),
        ("/v2/models/tiny/generate", {"text_input": "x", "temperature": -1}, 400, "temperature"),
        ("/v2/models/tiny/generate", {"text_input": "x", "stream": True}, 400, "generate_stream"),
        ("/v2/models/tiny/generate_stream", {"text_input": ""}, 400, "empty"),
        ("/v2/models/other/generate", {"text_input": "x"}, 404, "does not exist"),
        ("/v2/models/tiny/generate", [], 400, "JSON object"),
    ],
)
def test_bad_requests(server: KServeServer, path: str, body: Any, status: int, words: str) -> None:
    answer = server.post(path, body)
    assert answer.status_code == status
    assert words in answer.json()["error"]


LONG = {"max_tokens": 8000, "ignore_eos": True}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "tiny", "prompt": "x", **LONG, "stream": True}),
        ("/openai/v1/completions", {"model": "tiny", "prompt": "x", **LONG}),
        ("/v2/models/tiny/generate", {"text_input": "x", **LONG}),
        ("/v2/models/tiny/generate_stream", {"text_input": "x", **LONG}),
        ("/v1/models/tiny:predict", {"instances": [{"prompt": "x", **LONG}] * 2}),
        (
            "/v2/models/tiny/infer",
            {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["x"]}], "parameters": LONG},
        ),
    ],
)
def test_clients_that_leave(server: KServeServer, path: str, body: Any) -> None:
    before = server.wait_idle()["vllm:generation_tokens_total"]
    address = httpx.URL(server.url)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection((address.host, address.port or 80)) as raw:
        raw.sendall(head.encode() + data)
        server.until(lambda: server.metrics()["vllm:generation_tokens_total"] > before)
    after = server.wait_idle()
    whole = 8000 * len(body.get("instances", [None]))
    assert after["vllm:generation_tokens_total"] - before < whole - 100


def test_a_grpc_client_that_cancels(server: KServeServer) -> None:
    before = server.wait_idle()["vllm:generation_tokens_total"]
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        tensor = triton_grpc.InferInput("text_input", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([b"x"], dtype=np.object_))
        call = client.async_infer("tiny", [tensor], callback=lambda *_: None, parameters=LONG)
        server.until(lambda: server.metrics()["vllm:generation_tokens_total"] > before)
        call.cancel()
        assert server.wait_idle()["vllm:generation_tokens_total"] - before < 7500


def test_a_killed_and_a_frozen_core(server: KServeServer, llm: LLM) -> None:
    """Red while another core is started; streams go on where they were."""
    want = expected(llm, max_tokens=600).outputs[0].text
    body = {"text_input": PROMPT, "max_tokens": 600, "temperature": 0, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v2/models/tiny/generate_stream", json=body, timeout=120) as answer:
        lines = answer.iter_lines()
        chunks = [next(lines)]
        server.core().kill()
        server.until(lambda: all(server.status(path) == 503 for path in PROBES))
        chunks += lines
    texts = [json.loads(line[6:])["text_output"] for line in chunks if line.startswith("data: ")]
    assert "".join(texts) == want
    server.wait_ready()
    assert server.metrics()["octavo:core_restarts_total"] == 1


def test_the_end(server: KServeServer, llm: LLM) -> None:
    """Last of this server's tests: SIGTERM in a stream. Not ready at once, no new requests, exit code 0."""
    want = expected(llm, max_tokens=3000).outputs[0].text
    core = server.core()
    body = {"text_input": PROMPT, "max_tokens": 3000, "temperature": 0, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v2/models/tiny/generate_stream", json=body, timeout=120) as answer:
        lines = answer.iter_lines()
        chunks = [next(lines)]
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: server.status("/v2/health/ready") == 503)
        assert server.status("/v2/health/live") == 200
        refused = server.post("/v1/completions", {"model": "tiny", "prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_draining")
        assert server.post("/v2/models/tiny/generate", {"text_input": "x"}).status_code == 503
        chunks += lines
    texts = [json.loads(line[6:])["text_output"] for line in chunks if line.startswith("data: ")]
    assert "".join(texts) == want
    assert server.process.wait(40) == 0
    assert psutil.wait_procs([core], timeout=10)[1] == []


def test_what_outlasts_the_grace_period_is_aborted_and_a_dead_engine_is_told(models: Path) -> None:
    flags = (f"--model_dir={models.parent / 'fetched'}", "--grace_period=5", "--max-restarts=0", "--stall_timeout=1.5")
    with KServeServer(f"--storage_uri=file://{models / 'tiny'}", *FLAGS, *flags) as server:
        server.wait_ready()
        core = server.core()
        core.suspend()  # with nothing to do a frozen core is no stalled one
        time.sleep(2.0)
        assert server.status("/v2/health/live") == 200
        core.resume()
        body = {"text_input": "x", **LONG, "return_finish_reason": True}
        with httpx.stream("POST", f"{server.url}/v2/models/tiny/generate_stream", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            chunks = [next(lines)]
            # Stopped inside a step it is a stall; between two, it is let go and stopped again.
            for _ in range(20):
                core.suspend()
                time.sleep(3)
                if server.status("/health") == 503:
                    break
                core.resume()
                time.sleep(0.01)
            server.until(lambda: all(server.status(path) == 503 for path in (*PROBES, "/health")), 60)
            chunks += lines
        assert "stall_timeout" in httpx.get(f"{server.url}/v2/health/live").text
        assert "error" in [line for line in chunks if line.startswith("data: ")][-1]
        assert server.post("/v2/models/tiny/generate", {"text_input": "x"}).status_code == 503
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert time.monotonic() - began < 10


def test_other_prefixes_and_bad_starts(models: Path, tmp_path: Path) -> None:
    def start(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "octavo_adapters.kserve", *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ), check=False)

    for flags, words in (
        (("--workers=2",), "scale with replicas"),
        ((f"--model_dir={tmp_path}",), "is no model"),
        ((f"--model_dir={models}", "--max_num_sequs=3"), "did you mean"),
    ):
        ran = start(*flags)
        assert ran.returncode == 2
        assert words in ran.stderr.splitlines()[-1]
