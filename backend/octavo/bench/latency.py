"""`octavo bench latency`: one request at a time, against what the memory allows."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from octavo.bench import plot, report
from octavo.bench.bandwidth import read_bandwidth
from octavo.bench.machine import Machine, peak_rss_bytes
from octavo.bench.offline import check_fit, corpus_tokens, generate, machine_of, uses_cuda
from octavo.bench.workload import LatencyWorkload, TokenRequest, latency_prompts
from octavo.commandline import Parsed
from octavo.config import EngineConfig
from octavo.engine.llm import LLM


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: seconds to its first token, and tokens per second after it."""

    ttft_seconds: float
    decode_tokens_per_second: float


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """Attributes:
    ttft_seconds, decode_tokens_per_second: medians over the samples.
    weight_bytes: of the model as loaded; a decode step reads them once.
    weight_bytes_per_second: weight_bytes x decode_tokens_per_second.
    memory_bytes_per_second: read bandwidth, measured right after the samples.
    bandwidth_share: the one over the other.
    """

    model: str
    engine: dict[str, Any]
    workload: dict[str, Any]
    ttft_seconds: float
    decode_tokens_per_second: float
    weight_bytes: int
    weight_bytes_per_second: float
    memory_bytes_per_second: float
    bandwidth_share: float
    samples: list[Sample]
    peak_rss_bytes: int
    machine: Machine


def measure(llm: LLM, workload: LatencyWorkload) -> LatencyResult:
    """One warm-up request, then `repeats` different ones, then the bandwidth probe.

    Raises:
        ConfigError: the workload does not fit the model's context.
    """
    check_fit(llm, workload.prompt_len + workload.output_len, "prompt_len + output_len")
    warm_up, *prompts = latency_prompts(workload, corpus_tokens(llm))
    _sample(llm, warm_up, workload.output_len)
    samples = [_sample(llm, prompt, workload.output_len) for prompt in prompts]
    # Taken before the probe, whose buffer is not the engine's memory.
    peak_rss = peak_rss_bytes()
    bandwidth = read_bandwidth("cuda" if uses_cuda(llm) else "cpu", workload.bandwidth_bytes)
    speed = statistics.median(sample.decode_tokens_per_second for sample in samples)
    weight_bytes = llm.info.weight_bytes
    return LatencyResult(
        model=llm.config.model_name,
        engine=llm.config.model_dump(mode="json"),
        workload=workload.model_dump(mode="json"),
        ttft_seconds=statistics.median(sample.ttft_seconds for sample in samples),
        decode_tokens_per_second=speed,
        weight_bytes=weight_bytes,
        weight_bytes_per_second=weight_bytes * speed,
        memory_bytes_per_second=bandwidth,
        bandwidth_share=weight_bytes * speed / bandwidth,
        samples=samples,
        peak_rss_bytes=peak_rss,
        machine=machine_of(llm),
    )


def run(parsed: Parsed) -> int:
    """Loads the model, measures, reports."""
    json_file, plot_file = parsed.extras["json_file"], parsed.extras["plot_file"]
    report.check_outputs(json_file, plot_file)
    with LLM(**parsed.get(EngineConfig).model_dump()) as llm:
        result = measure(llm, parsed.get(LatencyWorkload))
    report.show(f"Latency of {result.model}", _rows(result), result.machine)
    report.write(result, json_file, plot_file, lambda path: plot.draw_latency(result, path))
    return 0


def _sample(llm: LLM, prompt: list[int], output_len: int) -> Sample:
    output = generate(llm, [TokenRequest(prompt, output_len)])[0]
    times = output.metrics
    if times is None or times.first_token_time is None or times.last_token_time is None:
        raise RuntimeError("the engine reported no times for a finished request")
    decoding = times.last_token_time - times.first_token_time
    return Sample(
        ttft_seconds=times.first_token_time - times.arrival_time,
        decode_tokens_per_second=(output.num_output_tokens - 1) / decoding,
    )


def _rows(result: LatencyResult) -> list[report.Row]:
    return [
        ("Time to first token", report.milliseconds(result.ttft_seconds)),
        ("Decode tok/s", f"{result.decode_tokens_per_second:,.1f}"),
        ("Weights", report.mebibytes(result.weight_bytes)),
        ("Weight bytes x tok/s", f"{result.weight_bytes_per_second / 1e9:.1f} GB/s"),
        ("Memory read bandwidth", f"{result.memory_bytes_per_second / 1e9:.1f} GB/s"),
        ("Share of the bandwidth", report.percent(result.bandwidth_share)),
        ("Peak memory (RSS)", report.mebibytes(result.peak_rss_bytes)),
    ]
