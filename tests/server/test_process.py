"""The server as people meet it: a process, signals, the printed examples, the official client."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from tests.server.process import KEY, ServerProcess
from tests.tiny import save_tiny_llama

from octavo.model.loading.source import resolve_model
from octavo.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.server, pytest.mark.slow]

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a context long enough to be in the middle of something."""
    return save_tiny_llama(tmp_path_factory.mktemp("long") / "tiny", context=8192)


FLAGS = (
    "--served-model-name",
    "tiny",
    "--kv-cache-memory-bytes",
    str(16 << 20),
    "--max-num-batched-tokens",
    "128",
    "--dtype",
    "float32",
)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ServerProcess]:
    with ServerProcess(model, *FLAGS) as server:
        yield server.wait_ready()


@pytest.fixture
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


def test_the_printed_examples_work_as_pasted(server: ServerProcess) -> None:
    """Both are cut out of stdout and run; the keys are read from the environment, not printed."""
    assert KEY not in server.stdout + server.stderr
    first, curl, snippet = server.stdout.split("\n\n")
    assert first.startswith("octavo ")
    environment = {"OCTAVO_API_KEY": KEY, "PATH": "/usr/bin:/bin"}
    for command in (["bash", "-c", curl + " -sf"], [sys.executable, "-c", snippet]):
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.strip()


def test_sync_client(server: ServerProcess, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "octavo"

    whole = client.chat.completions.create(
        model="tiny", messages=HI, max_completion_tokens=12, temperature=0, logprobs=True, top_logprobs=3, n=2
    )
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.choices[0].message.content == whole.choices[1].message.content
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in logprobs.content)
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in logprobs.content)

    text, usage, reasons = "", None, []
    for chunk in client.chat.completions.create(
        model="tiny",
        messages=HI,
        max_completion_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    assert text == whole.choices[0].message.content
    assert reasons[-1] == whole.choices[0].finish_reason
    assert usage is not None
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_echo_scores_the_prompt_as_generation_did(server: ServerProcess, model: Path) -> None:
    """The logprobs of generated tokens are those that scoring prompt and output as one prompt gives."""
    with server.client() as client:
        prompt = client.post("/tokenize", json={"prompt": "the quick brown"}).json()["tokens"]
        common = {"model": "tiny", "temperature": 0, "logprobs": 2, "echo": True}
        made = client.post(
            "/v1/completions", json={**common, "prompt": "the quick brown", "max_tokens": 6, "ignore_eos": True}
        ).json()["choices"][0]
        logprobs = made["logprobs"]
        assert len(logprobs["tokens"]) == len(prompt) + 6
        assert made["text"].startswith("the quick brown")
        assert logprobs["token_logprobs"][0] is None
        for name, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            if not name.startswith(("bytes:", "<|")):
                assert made["text"][offset : offset + len(name)] == name

        tokenizer = Tokenizer.load(resolve_model(str(model)))
        ids = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
        output = [ids[_exact(name)] for name in logprobs["tokens"][-6:]]
        again = client.post("/v1/completions", json={**common, "prompt": prompt + output, "max_tokens": 0}).json()
        assert again["usage"]["completion_tokens"] == 0
        scored = again["choices"][0]["logprobs"]
        assert scored["tokens"] == logprobs["tokens"]
        assert scored["token_logprobs"][1:] == pytest.approx(logprobs["token_logprobs"][1:], abs=1e-3)


def _exact(name: str) -> bytes:
    """A token's bytes from its name in an answer."""
    if name.startswith("bytes:"):
        return bytes.fromhex(name.removeprefix("bytes:").replace("\\x", ""))
    return name.encode()


async def test_async_client_many_at_once(server: ServerProcess) -> None:
    """Seeded requests give alone what they give among others."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:

        async def one(seed: int) -> str:
            answer = await client.completions.create(
                model="tiny", prompt=f"number {seed % 4}", max_tokens=20, seed=seed % 4, temperature=1
            )
            return answer.choices[0].text

        together = await asyncio.gather(*(one(seed) for seed in range(16)))
        assert [await one(seed) for seed in range(4)] * 4 == together


def test_errors_reach_the_client(server: ServerProcess, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=HI)
    assert missing.value.code == "model_not_found"
    for body, param in (
        ({"prompt": [[10**6]]}, "prompt"),
        ({"prompt": "x " * 9000}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "n": 65}, "n"),
        ({"prompt": "a", "logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"prompt": "a", "stop_token_ids": [1000000]}, "stop_token_ids"),
    ):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as bad:
                client.post("/completions", body={"model": "tiny", "stream": stream, **body}, cast_to=httpx.Response)
            assert bad.value.param == param
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-wrong").models.list()


def test_metrics_equal_a_hand_counted_run(server: ServerProcess, client: openai.OpenAI) -> None:
    before = server.wait_idle()
    ids = [20 + index for index in range(40)]
    counted = {"prompt": 0, "generated": 0, "length": 0}
    for _ in range(2):
        answer = client.completions.create(
            model="tiny", prompt=ids, max_tokens=7, temperature=0, n=2, extra_body={"ignore_eos": True}
        )
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (40, 14)
        counted["prompt"] += 40
        counted["generated"] += 14
        counted["length"] += 1
    stream = client.completions.create(
        model="tiny", prompt=ids, max_tokens=5000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    after = server.wait_idle()

    def gained(name: str) -> float:
        return after[name] - before[name]

    assert gained("vllm:prompt_tokens_total") == counted["prompt"] + 40
    assert gained("vllm:request_success_total{length}") == counted["length"]
    assert gained("vllm:request_success_total{abort}") == 1
    assert gained("vllm:request_success_total{stop}") == 0
    assert gained("vllm:time_to_first_token_seconds_count") == 3
    assert gained("vllm:e2e_request_latency_seconds_count") == 3
    assert gained("vllm:request_queue_time_seconds_count") == 3
    assert gained("vllm:generation_tokens_total") >= counted["generated"] + 1
    assert gained("vllm:prefix_cache_queries_total") == 120
    # 40 prompt tokens are two full blocks of 16: found by the second and the third request.
    assert gained("vllm:prefix_cache_hits_total") == 64
    assert after["vllm:kv_cache_usage_perc"] == 0


@pytest.mark.parametrize("streamed", [False, True], ids=["document", "stream"])
@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
def test_a_client_that_leaves_frees_its_request(
    server: ServerProcess, client: openai.OpenAI, phase: str, streamed: bool
) -> None:
    """Whatever the request is doing, its blocks are free within moments; prefills take many steps of 128 tokens."""
    server.wait_idle()
    others = []
    if phase == "waiting":
        # All slots are taken, so what comes next waits.
        others = [_open(server, "a", stream=True, n=64, max_tokens=4000)]
        _until(lambda: server.metrics()["vllm:num_requests_running"] >= 64)
    prompt = "x" * 7000 if phase == "prefill" else "b"
    leaving = _open(server, prompt, stream=streamed, max_tokens=500)
    if phase == "waiting":
        _until(lambda: server.metrics()["vllm:num_requests_waiting"] >= 1)
    elif phase == "decode":
        count = server.metrics()["vllm:generation_tokens_total"]
        _until(lambda: server.metrics()["vllm:generation_tokens_total"] > count)
    else:
        _until(lambda: server.metrics()["vllm:num_requests_running"] >= 1)
    leaving.close()
    if phase == "waiting":
        _until(lambda: server.metrics()["vllm:num_requests_waiting"] == 0)
    for other in others:
        other.close()
    assert server.wait_idle()["vllm:kv_cache_usage_perc"] == 0


def _open(server: ServerProcess, prompt: str, **fields: object) -> socket.socket:
    """A raw connection that has sent a request and reads nothing."""
    body = httpx.Request(
        "POST",
        f"{server.url}/v1/completions",
        json={"model": "tiny", "prompt": prompt, "ignore_eos": True, **fields},
        headers={"Authorization": f"Bearer {KEY}"},
    )
    lines = ["POST /v1/completions HTTP/1.1", *(f"{name}: {value}" for name, value in body.headers.items())]
    connection = socket.create_connection((body.url.host, body.url.port or 80))
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body.content)
    return connection


def _until(condition: object, seconds: float = 10.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


async def test_200_mixed_requests_with_random_aborts(server: ServerProcess) -> None:
    """Afterwards nothing runs or waits, every block is free, and memory is where it was."""
    server.wait_idle()
    core = server.core()
    front = psutil.Process(server.process.pid)
    rng = random.Random(5)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client:

        async def one(number: int) -> str:
            options = {"max_tokens": rng.randint(1, 60), "n": rng.choice([1, 1, 1, 2, 3])}
            extra = {"ignore_eos": rng.random() < 0.5, "top_k": rng.choice([0, 20])}
            prompt = "word " * rng.randint(1, 60)
            leave = rng.random() < 0.3
            await asyncio.sleep(rng.random())
            if number % 2:
                stream = await client.completions.create(
                    model="tiny", prompt=[prompt] * rng.randint(1, 2), stream=True, extra_body=extra, **options
                )
                async for _ in stream:
                    if leave and rng.random() < 0.2:
                        await stream.close()
                        return "left"
                return "done"
            call = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": prompt}], extra_body=extra, **options
            )
            if not leave:
                await call
                return "done"
            try:
                await asyncio.wait_for(call, rng.random() * 0.2)
            except TimeoutError:
                return "left"
            return "done"

        async def wave(count: int) -> list[str]:
            return await asyncio.gather(*(one(number) for number in range(count)))

        await wave(60)
        server.wait_idle()
        before = front.memory_info().rss + core.memory_info().rss
        outcomes = await wave(200)
    assert len(outcomes) == 200
    assert outcomes.count("left") > 10
    found = server.wait_idle()
    assert found["vllm:kv_cache_usage_perc"] == 0
    grown = front.memory_info().rss + core.memory_info().rss - before
    assert grown < 24 << 20, f"{grown >> 20} MiB more than before"
    assert server.process.poll() is None


def test_a_prompt_that_can_never_fit_the_cache(model: Path) -> None:
    """Both numbers are said, and a small request beside it is served."""
    flags = ("--served-model-name", "tiny", "--kv-cache-memory-bytes", str(1 << 19))
    with ServerProcess(model, *flags) as server, server.wait_ready().client() as client:
        answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "x " * 3000, "stream": True})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "prompt"
        # Tokens, and blocks of which there are too few.
        assert len(re.findall(r"\d+", answer.json()["error"]["message"])) >= 2
        assert client.post("/v1/completions", json={"model": "tiny", "prompt": "x"}).status_code == 200


def test_sigterm_lets_running_requests_finish(model: Path) -> None:
    with ServerProcess(model, *FLAGS) as server, server.wait_ready().client() as client:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 600, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            _until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
            refused = httpx.post(
                f"{server.url}/v1/completions",
                json={"model": "tiny", "prompt": "x"},
                headers={"Authorization": f"Bearer {KEY}"},
            )
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "engine_draining"
            assert "data: [DONE]" in list(lines)
        assert server.wait_exit() == 0
        assert "Traceback" not in server.stderr


def test_a_second_signal_ends_at_once(model: Path) -> None:
    with ServerProcess(model, *FLAGS) as server, server.wait_ready().client() as client:
        core = server.core()
        body = {"model": "tiny", "prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()  # kept: once it is collected, the response is closed
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            _until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
            server.process.send_signal(signal.SIGTERM)
            assert server.wait_exit(3) == 128 + signal.SIGTERM
        assert psutil.wait_procs([core], timeout=5)[1] == []
        assert "Traceback" not in server.stderr


def test_a_core_that_dies_too_often_fails_what_is_in_flight_and_turns_health_red(model: Path) -> None:
    with ServerProcess(model, *FLAGS, "--max-restarts", "0") as server, server.wait_ready().client() as client:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.core().kill()
            rest = [line for line in lines if line]
        assert "data: [DONE]" not in rest
        assert '"code":"engine_dead"' in rest[-1]
        health = client.get("/health")
        assert health.status_code == 503
        assert "killed" in health.json()["error"]["message"]
        assert client.post("/v1/completions", json={**body, "stream": False}).status_code == 503
        server.process.send_signal(signal.SIGINT)
        assert server.wait_exit() == 0
        assert "Traceback" not in server.stderr


def test_what_fails_at_the_start_is_one_line(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, expected in (
            ([str(model), "--port", port], f"cannot listen on 127.0.0.1:{port}: address already in use"),
            ([str(tmp_path / "nothing"), "--port", "0"], "nothing"),
            ([str(model), "--port", "0", "--max-model-len", "100000000"], "max_model_len"),
        ):
            ran = subprocess.run(
                [sys.executable, "-m", "octavo.server", *arguments],
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
            assert ran.returncode == 1, ran.stderr
            assert ran.stdout == ""
            (line,) = ran.stderr.splitlines()
            assert expected in line
