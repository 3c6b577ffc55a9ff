"""The offline benchmarks on a tiny model: every count is known, every figure follows from the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM
from octavo.bench import latency, plot, report, throughput
from octavo.bench.bandwidth import read_bandwidth
from octavo.bench.machine import last_level_cache_bytes, peak_rss_bytes
from octavo.bench.offline import corpus_tokens
from octavo.bench.workload import LatencyWorkload, ThroughputWorkload, throughput_requests
from octavo.errors import ConfigError

WORKLOAD = ThroughputWorkload(num_requests=12, min_prompt_len=8, max_prompt_len=40, min_output_len=4, max_output_len=12)


@pytest.fixture(scope="module")
def llm(tiny_model_path: Path) -> Iterator[LLM]:
    with LLM(
        str(tiny_model_path),
        dtype="float32",
        num_threads=1,
        max_num_seqs=4,
        kv_cache_memory_bytes=8 << 20,
        log_level="warning",
    ) as engine:
        yield engine


def test_throughput_counts_and_shares(llm: LLM, tmp_path: Path) -> None:
    wanted = throughput_requests(WORKLOAD, corpus_tokens(llm))
    result = throughput.measure(llm, WORKLOAD)
    assert result.output_tokens == sum(request.output_len for request in wanted)
    assert result.prompt_tokens == sum(len(request.prompt_token_ids) for request in wanted)
    assert [times.output_tokens for times in result.requests] == [request.output_len for request in wanted]
    assert result.cached_tokens == 0
    assert result.output_tokens_per_second == pytest.approx(result.output_tokens / result.seconds)
    assert 1 < result.mean_batch_size <= 4
    assert 0 <= result.kv_waste < 1
    assert 0 < result.forward_seconds < result.seconds
    assert result.outside_forward_share == pytest.approx(1 - result.forward_seconds / result.seconds)
    assert result.peak_rss_bytes > 100 << 20
    assert result.machine.threads == 1
    for times in result.requests:
        assert times.scheduled is not None
        assert times.first_token is not None
        assert times.last_token is not None
        assert 0 <= times.scheduled <= times.first_token <= times.last_token <= result.seconds
    json_file, plot_file = tmp_path / "r.json", tmp_path / "r.png"
    report.write(result, str(json_file), str(plot_file), lambda path: plot.draw_throughput(result, path))
    assert json.loads(json_file.read_text())["engine"]["max_num_seqs"] == 4
    assert plot_file.read_bytes().startswith(b"\x89PNG")


def test_latency(llm: LLM, tmp_path: Path) -> None:
    workload = LatencyWorkload(prompt_len=16, output_len=16, repeats=2, bandwidth_bytes=8 << 20)
    result = latency.measure(llm, workload)
    assert len(result.samples) == 2
    assert 0 < result.ttft_seconds < 10
    assert result.weight_bytes == llm.info.weight_bytes > 0
    assert result.weight_bytes_per_second == pytest.approx(result.weight_bytes * result.decode_tokens_per_second)
    assert result.bandwidth_share == pytest.approx(result.weight_bytes_per_second / result.memory_bytes_per_second)
    plot.draw_latency(result, str(tmp_path / "r.png"))
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_a_workload_longer_than_the_context_is_refused_with_both_numbers(llm: LLM) -> None:
    with pytest.raises(ConfigError, match=r"max_prompt_len \+ max_output_len is 768.*context is 512"):
        throughput.measure(llm, ThroughputWorkload())
    with pytest.raises(ConfigError, match=r"prompt_len \+ output_len is 600.*context is 512"):
        latency.measure(llm, LatencyWorkload(prompt_len=500, output_len=100))


def test_bandwidth_is_of_this_world() -> None:
    assert 1e8 < read_bandwidth("cpu", 32 << 20) < 1e13


def test_machine_facts() -> None:
    assert 1 << 16 <= last_level_cache_bytes() <= 1 << 34
    assert peak_rss_bytes() > 50 << 20


def test_outputs_are_checked_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report.check_outputs(str(tmp_path / "a.json"), str(tmp_path / "a.png"))
    with pytest.raises(ConfigError, match="--json: cannot write"):
        report.check_outputs(str(tmp_path), None)
    with pytest.raises(ConfigError, match="--plot: cannot write"):
        report.check_outputs(None, str(tmp_path / "none" / "a.png"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[plot\]'"):
        report.check_outputs(None, str(tmp_path / "a.png"))
