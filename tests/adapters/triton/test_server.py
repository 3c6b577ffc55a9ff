"""The adapter on a real tritonserver, asked by real clients."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from octavo import LLM, SamplingParams
from octavo.observe.metrics import EngineMetrics
from octavo.tensors import INPUTS, OUTPUTS
from tests.adapters.triton.server import Stream, TritonServer, in_threads, sse, write_model
from tests.tiny import save_tiny_llama

pytestmark = [pytest.mark.server, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
ENGINE = {"dtype": "float32", "num_threads": "1", "kv_cache_memory_bytes": 4 << 20, "max_num_seqs": 8}
PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("triton") / "tiny", context=2048)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("repository")
    # A path relative to the version directory, and a tensor of the user's own description.
    write_model(
        repository,
        "tiny",
        {"model": "weights", **ENGINE},
        'max_batch_size: 4\noutput [{ name: "text_output", data_type: TYPE_STRING, dims: [-1], label_filename: "" }]',
    )
    (repository / "tiny" / "1" / "weights").symlink_to(model)
    write_model(repository, "plain", {"model": str(model), **ENGINE}, backend="python")
    bls = repository / "bls"
    (bls / "1").mkdir(parents=True)
    example = ROOT / "model_repository" / "octavo_bls"
    (bls / "config.pbtxt").write_text((example / "config.pbtxt").read_text().replace('"octavo"', '"tiny"'))
    (bls / "1" / "model.py").write_text((example / "1" / "model.py").read_text())
    with TritonServer(repository, "tiny", "plain", "bls") as one:
        yield one.wait_ready()


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with LLM(str(model), **{**ENGINE, "num_threads": 1}) as engine:
        yield engine


def expected(llm: LLM, prompt: Any, **params: Any) -> Any:
    return llm.generate(prompt, SamplingParams(**{"max_tokens": 16, **params}), use_tqdm=False)[0]


def test_the_configuration_is_completed(server: TritonServer) -> None:
    config = httpx.get(f"{server.url}/v2/models/tiny/config").json()
    assert config["backend"] == "octavo"
    assert config["max_batch_size"] == 0
    assert config["model_transaction_policy"] == {"decoupled": True}
    types = {"BYTES": "TYPE_STRING"}
    for part, specs in (("input", INPUTS), ("output", OUTPUTS)):
        given = {tensor["name"]: (tensor["data_type"], tensor["dims"]) for tensor in config[part]}
        assert given == {
            spec.name: (types.get(spec.datatype, f"TYPE_{spec.datatype}"), list(spec.dims)) for spec in specs
        }
    assert all(tensor["optional"] for tensor in config["input"])


@pytest.mark.parametrize("name", ["tiny", "plain"])
def test_generate_over_http(server: TritonServer, llm: LLM, name: str) -> None:
    want = expected(llm, PROMPT, temperature=0, max_tokens=20, ignore_eos=True).outputs[0].text
    body = {"text_input": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    assert server.generate(name, **body).json()["text_output"] == PROMPT + want
    without = server.generate(name, **body, exclude_input_in_output=True, return_num_output_tokens=True).json()
    assert without["text_output"] == want
    assert without["num_output_tokens"] == 20


def test_stream_over_http(server: TritonServer, llm: LLM) -> None:
    want = expected(llm, PROMPT, temperature=0, ignore_eos=True).outputs[0].text
    body = {
        "text_input": PROMPT,
        "temperature": "0",
        "ignore_eos": "true",
        "stream": True,
        "return_finish_reason": True,
    }
    with server.http() as client, client.stream("POST", "/v2/models/tiny/generate_stream", json=body) as answer:
        events = list(sse(answer.iter_lines()))
    assert "".join(event["text_output"] for event in events) == want
    assert [event["finish_reason"] for event in events] == ["None"] * (len(events) - 1) + ["length"]
    assert len(events) > 4


def test_stream_over_grpc(server: TritonServer, llm: LLM) -> None:
    want = expected(llm, PROMPT, temperature=0.8, seed=5, max_tokens=30, ignore_eos=True).outputs[0]
    stream = Stream(
        server.grpc_url,
        "tiny",
        {"temperature": "0.8", "seed": 5, "max_tokens": 30, "ignore_eos": True},
        text_input=PROMPT,
        stream=True,
        return_finish_reason=True,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
    )
    while stream.next():
        pass
    answer = stream.answer
    assert stream.silent(0.5)
    stream.close()
    assert answer.error is None
    assert answer.text == want.text
    assert answer.finals == [False] * (len(answer.finals) - 1) + [True]
    assert answer.joined("finish_reason")[-1] == "length"
    assert sum(answer.joined("num_output_tokens")) == 30
    assert set(answer.joined("num_input_tokens")) == {len(llm.get_tokenizer().encode(PROMPT))}


def test_token_ids_in_and_out(server: TritonServer, llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(PROMPT)
    want = expected(llm, {"prompt_token_ids": ids}, temperature=0, max_tokens=12, ignore_eos=True).outputs[0]
    parameters = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    streamed = Stream(server.grpc_url, "tiny", parameters, input_ids=ids, stream=True).run()
    assert streamed.joined("output_ids") == want.token_ids
    whole = Stream(server.grpc_url, "tiny", parameters, input_ids=ids).run()
    assert whole.responses[0]["output_ids"] == want.token_ids
    assert whole.responses[0]["num_output_tokens"] == [12]
    assert whole.text == want.text


def test_sampling_parameters_win_and_take_lists(server: TritonServer, llm: LLM) -> None:
    text = expected(llm, PROMPT, temperature=0, max_tokens=40, ignore_eos=True).outputs[0].text
    stop = text[8:11]
    sampling = json.dumps({"temperature": 0, "max_tokens": "40", "ignore_eos": "true", "stop": [stop]})
    answer = Stream(
        server.grpc_url, "tiny", {"max_tokens": 2}, text_input=PROMPT, sampling_parameters=sampling, stream=True
    ).run()
    assert answer.text == text[: text.index(stop)]
    # A list does not fit into request parameters: it comes as JSON.
    body = {"text_input": PROMPT, "temperature": 0, "max_tokens": 40, "ignore_eos": True, "stop": json.dumps([stop])}
    answered = server.generate("tiny", **body, exclude_input_in_output=True).json()
    assert answered["text_output"] == text[: text.index(stop)]


def test_n_sequences_and_logprobs(server: TritonServer, llm: LLM) -> None:
    params = {"n": 2, "temperature": 0.9, "seed": 3, "max_tokens": 6, "ignore_eos": True, "logprobs": 2}
    want = expected(llm, PROMPT, **params)
    asked = {"return_cumulative_logprob": True, "return_logprobs": True, "return_num_output_tokens": True}
    sampling = json.dumps(params)
    whole = Stream(server.grpc_url, "tiny", text_input=PROMPT, sampling_parameters=sampling, **asked).run().responses
    (response,) = whole
    assert response["text_output"] == [PROMPT + one.text for one in want.outputs]
    assert response["cumulative_logprob"] == pytest.approx([one.cumulative_logprob for one in want.outputs], abs=1e-4)
    for shown, one in zip(response["logprobs"], want.outputs, strict=True):
        entries = json.loads(shown)
        assert [list(entry) for entry in entries] == [[str(token) for token in entry] for entry in one.logprobs]
        first = next(iter(one.logprobs[0].values()))
        assert next(iter(entries[0].values()))["logprob"] == pytest.approx(first.logprob, abs=1e-4)
    streamed = Stream(
        server.grpc_url, "tiny", text_input=PROMPT, sampling_parameters=sampling, stream=True, **asked
    ).run()
    assert all(len(response["text_output"]) == 2 for response in streamed.responses)
    for index, one in enumerate(want.outputs):
        assert "".join(response["text_output"][index] for response in streamed.responses) == one.text
    assert streamed.responses[-1]["cumulative_logprob"] == pytest.approx(response["cumulative_logprob"], abs=1e-4)


def test_text_beyond_ascii_and_messages(server: TritonServer, llm: LLM) -> None:
    prompt = "世界 🎉 ñ"
    want = expected(llm, prompt, temperature=0, ignore_eos=True).outputs[0].text
    assert (
        server.generate("tiny", text_input=prompt, temperature=0, ignore_eos=True).json()["text_output"]
        == prompt + want
    )
    messages = [{"role": "user", "content": "héllo"}]
    chat = llm.chat(messages, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True), use_tqdm=False)[0]
    body = {"messages": json.dumps(messages), "temperature": 0, "ignore_eos": True}
    assert server.generate("tiny", **body).json()["text_output"] == chat.outputs[0].text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text_input": "x", "max_tokenz": 1}, "did you mean 'max_tokens'"),
        ({"text_input": "x", "temperature": "hot"}, "temperature"),
        ({"text_input": "x", "sampling_parameters": "{"}, "sampling_parameters is not JSON"),
        ({"text_input": "x", "image": "aGk="}, "text alone"),
        ({"text_input": "x", "stream": True, "exclude_input_in_output": False}, "not possible when streaming"),
        ({"text_input": ""}, "empty"),
        ({"stream": False}, "text_input is required"),
        ({"text_input": "x " * 3000}, "context"),
        ({"messages": "[]"}, "at least one message"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(server: TritonServer, body: dict[str, Any], words: str) -> None:
    answer = server.generate("tiny", **body)
    assert answer.status_code >= 400
    assert words in answer.json()["error"]
    assert server.generate("tiny", text_input="x", max_tokens=1).status_code == 200


def test_business_logic_in_front(server: TritonServer, llm: LLM) -> None:
    want = expected(llm, "Question: why?\nAnswer:", temperature=0, max_tokens=32).outputs[0].text
    with server.http() as client:
        answer = client.post("/v2/models/bls/generate_stream", json={"question": "why?"})
    assert "".join(event["answer"] for event in sse(iter(answer.text.splitlines()))) == want + " [end]"


def test_many_at_once(server: TritonServer, llm: LLM) -> None:
    prompts = [PROMPT * (1 + number % 5) for number in range(16)]
    params = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    want = [expected(llm, prompt, **params).outputs[0].text for prompt in prompts]
    got = in_threads(
        16, lambda number: Stream(server.grpc_url, "tiny", params, text_input=prompts[number], stream=True).run().text
    )
    assert got == want


def test_cancelled_streams_free_what_they_held(server: TritonServer) -> None:
    """Decoding, and, with eight at work, waiting: of twelve requests eight run."""
    before = server.wait_idle("tiny")["vllm:generation_tokens_total"]
    long = {"max_tokens": 1900, "ignore_eos": True}
    streams = [Stream(server.grpc_url, "tiny", long, text_input="x", stream=True) for _ in range(12)]
    for stream in streams[:8]:
        stream.next()
    for stream in streams[8:] + streams[:8]:
        stream.cancel()
    after = server.wait_idle("tiny")
    assert after["vllm:generation_tokens_total"] - before < 8 * 1900


def test_cancelled_while_their_prompts_are_computed(server: TritonServer) -> None:
    """Prompts that fill the cache several times over, cancelled at once: some in prefill, most of them waiting."""
    long = {"max_tokens": 1, "ignore_eos": True}
    prompts = [[3 + (number + place) % 50 for place in range(1900)] for number in range(24)]
    streams = [Stream(server.grpc_url, "tiny", long, input_ids=prompt, stream=True) for prompt in prompts]
    for stream in streams:
        stream.cancel()
    server.wait_idle("tiny")
    assert server.generate("tiny", text_input="x", max_tokens=1).status_code == 200


def test_an_http_client_that_goes_away(server: TritonServer) -> None:
    before = server.wait_idle("tiny")["vllm:generation_tokens_total"]
    body = {"text_input": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with server.http() as client, client.stream("POST", "/v2/models/tiny/generate_stream", json=body) as answer:
        next(answer.iter_lines())
    after = server.wait_idle("tiny")
    assert after["vllm:generation_tokens_total"] - before < 1800


def test_hundreds_of_all_kinds(server: TritonServer, llm: LLM) -> None:
    """Over 200 cancels and errors among over 200 finishes: these have their own tokens, and nothing stays behind."""
    params = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    want = [expected(llm, PROMPT * (1 + number), **params).outputs[0].text for number in range(4)]

    def client(number: int) -> tuple[int, int, int]:
        dice = random.Random(number)
        counts = [0, 0, 0]
        for _ in range(60):
            # As many finishes as cancels and errors together.
            kind = dice.choice([0, 0, 1, 2])
            counts[kind] += 1
            which = dice.randrange(4)
            if kind == 0:
                got = Stream(server.grpc_url, "tiny", params, text_input=PROMPT * (1 + which), stream=True).run()
                assert (got.error, got.text) == (None, want[which])
            elif kind == 1:
                stream = Stream(server.grpc_url, "tiny", {"max_tokens": 500}, text_input="x", stream=True)
                if dice.random() < 0.7:
                    stream.next()
                stream.cancel()
            else:
                got = Stream(server.grpc_url, "tiny", {"temperature": -1}, text_input="x", stream=True).run()
                assert got.error is not None
                assert "temperature" in got.error
        return counts[0], counts[1], counts[2]

    totals = [sum(counts) for counts in zip(*in_threads(8, client), strict=True)]
    finished, cancelled, refused = totals
    assert finished >= 200
    assert cancelled + refused >= 200
    server.wait_idle("tiny")
    assert "Traceback" not in server.log.read_text()


def test_metrics_have_the_names_they_have_everywhere(server: TritonServer) -> None:
    assert server.generate("tiny", text_input="x", max_tokens=3, ignore_eos=True).status_code == 200
    found = server.wait_idle("tiny")
    metrics = EngineMetrics("m")
    metrics.record_cache(1, 1)
    for family in metrics.collect():
        if family.type == "histogram":
            assert found[f"{family.name}_count"] >= 1, family.name
            assert f"{family.name}_sum" in found
        else:
            assert family.name + ("_total" if family.type == "counter" else "") in found


def test_a_killed_core_is_replaced_under_its_streams(server: TritonServer, llm: LLM) -> None:
    params = {"temperature": 0, "max_tokens": 600, "ignore_eos": True}
    want = expected(llm, PROMPT, **params).outputs[0].text
    restarts = "octavo:core_restarts_total"
    before = {name: server.metrics(name)[restarts] for name in ("tiny", "plain")}
    streams = [Stream(server.grpc_url, name, params, text_input=PROMPT, stream=True) for name in ("tiny", "plain")]
    for stream in streams:
        stream.next()
    for core in server.cores():
        core.kill()
    for stream in streams:
        assert stream.run().text == want
    time.sleep(1.2)
    assert {name: server.metrics(name)[restarts] for name in before} == {name: n + 1 for name, n in before.items()}


def test_the_end_of_a_server_and_its_streams(
    model: Path, tmp_path: Path, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM: running streams finish, then nothing is left: no process, no shared memory, exit code 0.

    And before: Triton's stub ignored PYTHONPATH, its engine's core did not, so each could be another octavo.
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(elsewhere), *filter(None, [os.environ.get("PYTHONPATH")])]))
    write_model(tmp_path, "tiny", {"model": str(model), **ENGINE, "max_restarts": 0})
    params = {"temperature": 0, "max_tokens": 800, "ignore_eos": True}
    want = expected(llm, PROMPT, **params).outputs[0].text
    with TritonServer(tmp_path, "tiny") as server:
        server.wait_ready()
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(children) >= 3
        (core,) = server.cores()
        assert str(elsewhere) not in core.environ()["PYTHONPATH"].split(os.pathsep)
        stream = Stream(server.grpc_url, "tiny", params, text_input=PROMPT, stream=True)
        stream.next()
        server.process.send_signal(signal.SIGTERM)
        assert stream.run().text == want
        assert server.process.wait(60) == 0
        assert psutil.wait_procs(children, timeout=10)[1] == []
        assert list(Path("/dev/shm").glob(f"octavo_triton_{server.process.pid}_*")) == []


def test_an_engine_does_not_outlive_its_server(model: Path, tmp_path: Path) -> None:
    """A stub that was sending when its server was killed waited for ever, and its engine kept its memory."""
    write_model(tmp_path, "tiny", {"model": str(model), **ENGINE})
    long = {"max_tokens": 1900, "ignore_eos": True}
    with TritonServer(tmp_path, "tiny") as server:
        server.wait_ready()
        children = psutil.Process(server.process.pid).children(recursive=True)
        (triton,) = (child for child in children if child.name() == "tritonserver")
        streams = [Stream(server.grpc_url, "tiny", long, text_input="x", stream=True) for _ in range(8)]
        for stream in streams:
            stream.next()
        # The command cleans up behind its server; here, as in a container, there is none.
        server.process.kill()
        triton.kill()
        assert psutil.wait_procs(children, timeout=60)[1] == []
        assert list(Path("/dev/shm").glob(f"octavo_triton_{server.process.pid}_*")) == []


def test_models_come_and_go_and_a_dead_engine_is_told(model: Path, tmp_path: Path) -> None:
    """Explicit loads and unloads; bad options by their message; an engine past its restarts turns its model red."""
    write_model(tmp_path, "tiny", {"model": str(model), **ENGINE, "max_restarts": 0})
    write_model(tmp_path, "wrong", {"model": str(model), "max_num_sequs": 8})
    with TritonServer(tmp_path, "tiny") as server, server.http() as client:
        server.wait_ready()
        refused = client.post("/v2/repository/models/wrong/load")
        assert refused.status_code >= 400
        assert "did you mean 'max_num_seqs'" in refused.json()["error"]
        sizes = []
        for _ in range(3):
            assert client.post("/v2/repository/models/tiny/unload").status_code == 200
            server.until(lambda: not server.cores())
            assert client.post("/v2/repository/models/tiny/load").status_code == 200
            assert server.generate("tiny", text_input="x", max_tokens=2).status_code == 200
            family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
            sizes.append(sum(process.memory_info().rss for process in family))
        assert max(sizes) - min(sizes) < 64 << 20
        (core,) = server.cores()
        stream = Stream(server.grpc_url, "tiny", {"max_tokens": 1900, "ignore_eos": True}, text_input="x", stream=True)
        stream.next()
        core.kill()
        answer = stream.run()
        assert answer.error is not None
        assert "SIGKILL" in answer.error
        server.until(lambda: not server.ready("tiny"))
        began = time.monotonic()
        assert server.generate("tiny", text_input="x", max_tokens=2).status_code >= 400
        assert time.monotonic() - began < 10
        assert client.post("/v2/repository/models/tiny/load").status_code == 200
        assert server.generate("tiny", text_input="x", max_tokens=2).status_code == 200


def test_what_cannot_be_served_is_one_line(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "octavo"), "triton", "serve"]
    ran = subprocess.run(
        [*command, f"--model-repository={tmp_path / 'none'}"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert "there is no model repository" in line


def test_the_example_client(server: TritonServer) -> None:
    ran = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "triton_client.py"),
            f"--http-port={server.http_port}",
            f"--grpc-port={server.grpc_port}",
            "--model=tiny",
            PROMPT,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    streamed, _, whole = ran.stdout.removeprefix("gRPC, streamed:\n").partition("\nHTTP:\n")
    assert streamed == whole.rstrip("\n")
    assert streamed
