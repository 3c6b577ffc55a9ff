"""Workloads are what they say, every time; percentiles are percentiles."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo.bench.stats import Percentiles, percentile
from octavo.bench.workload import (
    LatencyWorkload,
    ServeWorkload,
    ThroughputWorkload,
    corpus,
    latency_prompts,
    serve_requests,
    throughput_requests,
)
from octavo.errors import ConfigError

TOKENS = list(range(5000))


def test_the_standard_workload() -> None:
    requests = throughput_requests(ThroughputWorkload(), TOKENS)
    prompt_lens = [len(request.prompt_token_ids) for request in requests]
    output_lens = [request.output_len for request in requests]
    assert len(requests) == 64
    assert min(prompt_lens) >= 32
    assert max(prompt_lens) <= 512
    assert min(output_lens) >= 16
    assert max(output_lens) <= 256
    # Uniform: the means are near the middle, and both ends are reached for.
    assert abs(np.mean(prompt_lens) - 272) < 60
    assert abs(np.mean(output_lens) - 136) < 30
    assert min(prompt_lens) < 80
    assert max(prompt_lens) > 460
    for request in requests:
        start = request.prompt_token_ids[0]
        assert request.prompt_token_ids == TOKENS[start : start + len(request.prompt_token_ids)]


def test_lengths_reach_both_ends() -> None:
    workload = ThroughputWorkload(
        num_requests=200, min_prompt_len=2, max_prompt_len=4, min_output_len=1, max_output_len=2
    )
    requests = throughput_requests(workload, TOKENS)
    assert {len(request.prompt_token_ids) for request in requests} == {2, 3, 4}
    assert {request.output_len for request in requests} == {1, 2}


def test_same_seed_same_requests() -> None:
    assert throughput_requests(ThroughputWorkload(), TOKENS) == throughput_requests(ThroughputWorkload(), TOKENS)
    other = throughput_requests(ThroughputWorkload(workload_seed=1), TOKENS)
    assert other != throughput_requests(ThroughputWorkload(), TOKENS)
    assert serve_requests(ServeWorkload(), corpus()) == serve_requests(ServeWorkload(), corpus())


def test_no_two_prompts_begin_alike() -> None:
    starts = [request.prompt_token_ids[0] for request in throughput_requests(ThroughputWorkload(), TOKENS)]
    assert len(set(starts)) == 64
    texts = {request.prompt[:32] for request in serve_requests(ServeWorkload(), corpus())}
    assert len(texts) == 64


def test_the_standard_workload_never_changes() -> None:
    """Results are compared over versions: a change of the drawing would make that comparison silently false."""
    requests = throughput_requests(ThroughputWorkload(), TOKENS)
    assert [(len(one.prompt_token_ids), one.output_len) for one in requests[:3]] == [(464, 250), (229, 19), (420, 39)]
    assert sum(len(one.prompt_token_ids) for one in requests) == 19167
    assert sum(one.output_len for one in requests) == 9269


def test_the_corpus_is_long_enough_for_the_standard_workloads() -> None:
    text = corpus()
    assert len(text) > 16_000
    assert "\r" not in text
    assert max(len(one.prompt) for one in serve_requests(ServeWorkload(), text)) <= 512 * 4


def test_more_requests_than_places() -> None:
    workload = ThroughputWorkload(num_requests=50, min_prompt_len=8, max_prompt_len=8)
    assert len(throughput_requests(workload, TOKENS[:10])) == 50


def test_a_prompt_longer_than_the_corpus() -> None:
    with pytest.raises(ConfigError, match=r"has 100 tokens, too few for a prompt of 512"):
        throughput_requests(ThroughputWorkload(), TOKENS[:100])


def test_latency_prompts() -> None:
    prompts = latency_prompts(LatencyWorkload(repeats=4), TOKENS)
    assert [len(prompt) for prompt in prompts] == [128] * 5
    assert len({prompt[0] for prompt in prompts}) == 5


def test_lengths_out_of_order() -> None:
    with pytest.raises(ConfigError, match=r"min_output_len \(9\) is above max_output_len \(8\)"):
        ThroughputWorkload(min_output_len=9, max_output_len=8)
    with pytest.raises(ConfigError, match="num_requests"):
        ServeWorkload(num_requests=0)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("percent", [0, 1, 50, 99, 100])
def test_percentiles_are_numpys(count: int, percent: int) -> None:
    values = np.random.default_rng(count).random(count)
    assert percentile(list(values), percent) == pytest.approx(float(np.percentile(values, percent)))


def test_percentiles_of_nothing() -> None:
    assert math.isnan(percentile([], 50))
    assert Percentiles.of([]) == Percentiles(None, None, None)
    assert Percentiles.of([1.0, 3.0]).mean == 2.0
