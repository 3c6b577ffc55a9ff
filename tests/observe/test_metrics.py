from __future__ import annotations

import time

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from octavo.core.request import SchedulerStats
from octavo.observe.metrics import Distribution, EngineMetrics


def samples(metrics: EngineMetrics) -> dict[str, float]:
    """Every sample by `name` or `name{label=value}`, the model's label left out."""
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "model_name"}
            suffix = "{" + ",".join(f"{key}={value}" for key, value in labels.items()) + "}" if labels else ""
            found[sample.name + suffix] = sample.value
    return found


def test_a_hand_counted_run() -> None:
    metrics = EngineMetrics("tiny")
    metrics.record_first_token(prompt_tokens=7, ttft=0.03, queue=0.4)
    metrics.record_tokens(1)
    metrics.record_tokens(1, 0.02)
    metrics.record_tokens(2, 0.06)
    metrics.record_finished("length", 1.2, 7, 4)
    found = samples(metrics)
    assert found["vllm:prompt_tokens_total"] == 7
    assert found["vllm:generation_tokens_total"] == 4
    assert found["vllm:request_success_total{finished_reason=length}"] == 1
    assert found["vllm:request_success_total{finished_reason=stop}"] == 0
    assert found["vllm:time_to_first_token_seconds_count"] == 1
    assert found["vllm:time_to_first_token_seconds_bucket{le=0.02}"] == 0
    assert found["vllm:time_to_first_token_seconds_bucket{le=0.04}"] == 1
    assert found["vllm:inter_token_latency_seconds_count"] == 3
    assert found["vllm:inter_token_latency_seconds_sum"] == pytest.approx(0.08)
    assert found["vllm:request_queue_time_seconds_bucket{le=0.5}"] == 1
    assert found["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(1.2)
    assert found["vllm:request_prompt_tokens_sum"] == 7
    assert found["vllm:request_generation_tokens_bucket{le=5.0}"] == 1


def test_gauges_follow_and_totals_survive_a_restarted_core() -> None:
    metrics = EngineMetrics("tiny")
    metrics.record_stats(SchedulerStats(3, 2, 0.5, 0.01, 4, 100, 60))
    metrics.record_stats(SchedulerStats(1, 0, 0.25, 0.02, 5, 150, 80))
    metrics.record_stats(SchedulerStats(1, 0, 0.25, 0.02, 1, 10, 5))
    found = samples(metrics)
    assert found["vllm:num_requests_running"] == 1
    assert found["vllm:num_requests_waiting"] == 0
    assert found["vllm:kv_cache_usage_perc"] == 0.25
    assert found["octavo:kv_waste_perc"] == 0.02
    assert found["vllm:num_preemptions_total"] == 6
    assert found["vllm:prefix_cache_queries_total"] == 160
    assert found["vllm:prefix_cache_hits_total"] == 85


def test_labels_and_registries() -> None:
    registry = CollectorRegistry()
    metrics = EngineMetrics('od"d\\name', registry)
    EngineMetrics("other")
    metrics.record_cache(num_blocks=9, block_size=16)
    body = metrics.render()[0].decode()
    assert "process_" not in body
    families = {family.name: family for family in text_string_to_metric_families(body)}
    labels = families["vllm:cache_config_info"].samples[0].labels
    assert labels["model_name"] == 'od"d\\name'
    assert (labels["num_gpu_blocks"], labels["block_size"]) == ("9", "16")
    assert "process_resident_memory_bytes" in samples(EngineMetrics("third"))


def test_distribution_bounds_are_inclusive() -> None:
    filled = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        filled.observe(value)
    assert filled.cumulative() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert filled.count == 5


def test_a_step_of_64_sequences_costs_little() -> None:
    metrics = EngineMetrics("tiny")
    stats = SchedulerStats(num_running=64)
    best = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        metrics.record_stats(stats)
        for _ in range(64):
            metrics.record_tokens(1, 0.02)
        best = min(best, time.perf_counter() - start)
    assert best < 0.3e-3
