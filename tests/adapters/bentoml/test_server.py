"""The adapter on a real `bentoml serve`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from octavo import LLM, SamplingParams
from tests.adapters.bentoml.server import BENTOML, BentoServer, environment
from tests.tiny import save_tiny_llama

pytestmark = [pytest.mark.server, pytest.mark.slow]

PROMPT = "the quick brown fox"
ENGINE = {"dtype": "float32", "num_threads": 1, "kv_cache_memory_bytes": 128 << 20, "max_num_seqs": 8}

OWN = """
import bentoml
from octavo import EngineConfig, SamplingParams
from octavo_adapters.bentoml import with_llm

CONFIG = EngineConfig(**{engine!r})

@with_llm(CONFIG, labels={{"team": "a"}}, drain_timeout=20)
class Own:
    @bentoml.api
    async def count(self, text: str) -> int:
        total = 0
        async for output in self.engine.generate(text, SamplingParams(max_tokens=7, ignore_eos=True)):
            total += len(output.outputs[0].token_ids)
        return total
"""
PAIR = """
from octavo import EngineConfig
from octavo_adapters.bentoml import llm_service

Pair = llm_service(
    EngineConfig(**{engine!r}), name="pair", workers=2, traffic={{"max_concurrency": 4, "timeout": 2}}
)
"""
PACKED = """
import bentoml
from octavo import EngineConfig
from octavo_adapters.bentoml import llm_image, llm_service

Packed = llm_service(
    EngineConfig(**{engine!r}),
    name="packed",
    model=bentoml.models.BentoModel("tiny:v1"),
    image=llm_image(octavo="./wheels/octavo-0.1.0-py3-none-any.whl"),
)
Gpu = llm_service(EngineConfig(**{engine!r}), name="gpu", resources={{"gpu": 1}})
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("bentoml") / "tiny", context=16384)


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Service files."""
    path = tmp_path_factory.mktemp("services")
    engine = {"model": str(model), "served_model_name": ["tiny"], **ENGINE}
    (path / "own.py").write_text(OWN.format(engine=engine))
    (path / "pair.py").write_text(PAIR.format(engine=engine))
    (path / "packed.py").write_text(PACKED.format(engine={**engine, "model": "unused", "max_restarts": 0}))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(folder: Path, home: Path) -> Iterator[BentoServer]:
    with BentoServer("own:Own", home, folder) as one:
        # While it loads the probes tell so, and it is alive.
        one.until(lambda: one.status("/livez") == 200)
        waiting = httpx.get(one.url + "/readyz", timeout=30)
        assert waiting.status_code == 503
        assert "the engine is starting: loading" in waiting.text
        early = httpx.post(one.url + "/v1/completions", json={"model": "tiny", "prompt": "x"}, timeout=30)
        assert (early.status_code, early.json()["error"]["code"]) == (503, "engine_starting")
        yield one.wait_ready()


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with LLM(str(model), **ENGINE) as engine:
        yield engine


def expected(llm: LLM, prompt: str, max_tokens: int = 20) -> str:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text


def test_native_streams(server: BentoServer, llm: LLM) -> None:
    body: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "options": {"ignore_eos": True}}
    with server.client() as client:
        with client.stream("POST", "/generate", json={**body, "prompt": PROMPT}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            parts = list(answer.iter_text())
        assert "".join(parts) == expected(llm, PROMPT)
        assert len(parts) > 1
        messages = [{"role": "user", "content": "the dog"}]
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        want = llm.chat(messages, params, use_tqdm=False)[0].outputs[0].text
        assert client.post("/chat", json={**body, "messages": messages}).text == want


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/generate", {"prompt": "x", "temperature": -1}, "temperature"),
        ("/generate", {}, "prompt"),
        ("/generate", {"prompt": ""}, "empty"),
        ("/generate", {"prompt": "x", "options": {"top_kk": 1}}, "did you mean 'top_k'"),
        ("/generate", {"prompt": "x", "options": {"n": 2}}, "one sequence"),
        ("/generate", {"prompt": "x " * 20000}, "context"),
        ("/chat", {"messages": [{"role": "robot", "content": "x"}]}, "role"),
    ],
)
def test_bad_native_requests(server: BentoServer, path: str, body: dict[str, Any], words: str) -> None:
    answer = httpx.post(server.url + path, json=body, timeout=60)
    assert answer.status_code == 400
    assert words in answer.text


def test_the_openai_client(server: BentoServer, llm: LLM) -> None:
    """One implementation, mounted: the same text, usage, reasons and errors as the plain server's."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 20, "temperature": 0}
        asked["extra_body"] = {"ignore_eos": True}
        whole = client.completions.create(**asked)
        assert whole.choices[0].text == expected(llm, PROMPT)
        assert whole.usage is not None
        assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 20)
        chunks = list(client.completions.create(**asked, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
        chat = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=3, stream=True
        )
        assert list(chat)[-1].choices[0].finish_reason in ("length", "stop")
        assert [model.id for model in client.models.list()] == ["tiny"]
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.completions.create(model="other", prompt="x")
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.completions.create(model="tiny", prompt="x", temperature=9)


def test_a_users_own_endpoint_and_the_documents(server: BentoServer) -> None:
    with server.client() as client:
        assert client.post("/count", json={"text": "the fox"}).json() == 7
        documented = client.get("/docs.json").json()["paths"]
        assert {"/count", "/generate", "/chat"} <= set(documented)
        schema = client.get("/schema.json").json()
        inputs = {
            route["name"]: route["input"]["properties"] for route in schema["routes"] if "properties" in route["input"]
        }
        assert inputs["generate"]["max_tokens"]["description"] == "Most tokens to generate."


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"prompt": "x", "max_tokens": 15000, "options": {"ignore_eos": True}}),
        ("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 15000, "ignore_eos": True, "stream": True}),
    ],
)
def test_clients_that_leave(server: BentoServer, path: str, body: dict[str, Any]) -> None:
    """While decoding, and, with eight at work, before the first token."""
    before = server.wait_idle()["vllm:generation_tokens_total", "1"]
    with server.client() as client:
        running = [client.stream("POST", path, json=body) for _ in range(8)]
        answers = [stream.__enter__() for stream in running]
        texts = [answer.iter_text() for answer in answers]  # kept: collected, they close their responses
        for text in texts:
            next(text)
        with pytest.raises(httpx.ReadTimeout), server.client(timeout=0.3) as hasty:
            hasty.post(path, json=body)
        for stream in running:
            stream.__exit__(None, None, None)
    after = server.wait_idle()
    assert after["vllm:generation_tokens_total", "1"] - before < 8 * 14000


def test_a_killed_core_is_replaced(server: BentoServer, llm: LLM) -> None:
    body = {"prompt": PROMPT, "max_tokens": 600, "temperature": 0, "options": {"ignore_eos": True}}
    with server.client() as client, client.stream("POST", "/generate", json=body) as answer:
        parts = answer.iter_text()
        text = next(parts)
        (core,) = server.cores()
        core.kill()
        server.until(lambda: server.status("/readyz") == 503)
        assert server.status("/livez") == 200
        text += "".join(parts)
    assert text == expected(llm, PROMPT, 600)
    server.wait_ready()
    assert server.metrics()["octavo:core_restarts_total", "1"] == 1


def test_the_end_lets_streams_finish(server: BentoServer, llm: LLM) -> None:
    """Last of this server's tests: SIGTERM in the middle of a stream."""
    everyone = psutil.Process(server.process.pid).children(recursive=True)
    body = {"prompt": PROMPT, "max_tokens": 800, "temperature": 0, "options": {"ignore_eos": True}}
    with server.client() as client, client.stream("POST", "/generate", json=body) as answer:
        parts = answer.iter_text()
        text = next(parts)
        server.process.send_signal(signal.SIGTERM)
        text += "".join(parts)
    assert text == expected(llm, PROMPT, 800)
    assert server.process.wait(60) == 0
    assert psutil.wait_procs(everyone, timeout=20)[1] == []


def test_two_workers_and_their_limits(folder: Path, home: Path) -> None:
    """An engine each, two at a time each: beyond them 429; past the timeout 504, and the KV is free."""
    with BentoServer("pair:Pair", home, folder) as server:
        server.until(lambda: len(server.cores()) == 2)
        server.until(lambda: {worker for _, worker in server.metrics()} == {"1", "2"})
        ready = "vllm:cache_config_info"
        server.until(lambda: sum(name == ready for name, _ in server.metrics()) == 2)
        server.wait_ready()
        body = {"model": "tiny", "prompt": "x", "max_tokens": 15000, "n": 8, "ignore_eos": True}
        with httpx.Client(base_url=server.url, timeout=60) as client, ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: client.post("/v1/completions", json=body), range(12)))
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {429, 504}
        assert statuses.count(504) <= 4
        found = server.wait_idle()
        assert sum(value for (name, _), value in found.items() if name == "vllm:request_success_total") >= 1
        assert all(value == 0 for (name, _), value in found.items() if name == "octavo:core_restarts_total")


def test_a_bento_is_built_and_served_offline(folder: Path, home: Path, model: Path, llm: LLM) -> None:
    """Model of BentoML's store, generated Dockerfile, `bentoml serve TAG`; and an engine that is dead for good."""
    script = (
        "import bentoml, shutil\n"
        "with bentoml.models.create('tiny:v1') as made:\n"
        f"    shutil.copytree({str(model)!r}, made.path, dirs_exist_ok=True)\n"
    )
    subprocess.run([sys.executable, "-c", script], env=environment(home), check=True)
    (folder / "wheels").mkdir()
    (folder / "wheels" / "octavo-0.1.0-py3-none-any.whl").write_bytes(b"")
    files: dict[str, str] = {}
    for service, version in (("packed:Packed", "v1"), ("packed:Gpu", "v2")):
        built = subprocess.run(
            [BENTOML, "build", service, "--version", version, "--output", "tag"],
            cwd=folder,
            env=environment(home),
            capture_output=True,
            text=True,
            check=False,
        )
        assert built.returncode == 0, built.stderr
        name = service.partition(":")[2].lower()
        bento = home / "bentos" / name / version
        files[name] = "\n".join(
            path.read_text() for path in (bento / "env").rglob("*") if path.is_file() and path.suffix != ".lock"
        )
    assert "./wheels/octavo-0.1.0-py3-none-any.whl" in files["packed"]
    assert re.search(r"apt-get install.*g\+\+.*python3-dev", files["packed"].replace("\\\n", " "), re.DOTALL)
    assert "whl/cpu" in files["packed"]
    assert "whl/cpu" not in files["gpu"]
    with BentoServer("packed:v1", home, folder) as server:
        server.wait_ready()
        body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "options": {"ignore_eos": True}}
        assert httpx.post(server.url + "/generate", json=body, timeout=60).text == expected(llm, PROMPT)
        assert json.loads(httpx.get(server.url + "/v1/models").text)["data"][0]["id"] == "tiny"
        (core,) = server.cores()
        core.kill()
        server.until(lambda: server.status("/livez") == 503)
        assert "the engine is dead" in httpx.get(server.url + "/livez").text
        assert httpx.post(server.url + "/v1/completions", json={"model": "tiny", "prompt": "x"}).status_code == 503
