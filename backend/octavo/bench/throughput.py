"""`octavo bench throughput`: a batch of requests through `LLM`, as fast as it goes."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from octavo.bench import plot, report
from octavo.bench.machine import Machine, peak_rss_bytes
from octavo.bench.offline import check_fit, corpus_tokens, generate, machine_of, uses_cuda
from octavo.bench.workload import ThroughputWorkload, throughput_requests
from octavo.commandline import Parsed
from octavo.config import EngineConfig
from octavo.engine.llm import LLM
from octavo.outputs import RequestOutput

_WARM_UP_OUTPUT = 4


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Seconds since the run began; None for what the engine did not report."""

    scheduled: float | None
    first_token: float | None
    last_token: float | None
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """Attributes:
    seconds: wall time of the run, from handing the batch over to the last result.
    mean_batch_size: sequences in a step, over all steps.
    kv_waste: share of the owned KV slots that held no token, over all steps.
    outside_forward_share: share of `seconds` not spent in the forward pass.
    peak_rss_bytes: of this process, model loading included.
    """

    model: str
    engine: dict[str, Any]
    workload: dict[str, Any]
    seconds: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    output_tokens_per_second: float
    total_tokens_per_second: float
    steps: int
    mean_batch_size: float
    kv_waste: float
    preemptions: int
    forward_seconds: float
    outside_forward_share: float
    peak_rss_bytes: int
    peak_cuda_bytes: int | None
    requests: list[RequestTimes]
    machine: Machine


def measure(llm: LLM, workload: ThroughputWorkload, *, use_tqdm: bool = False) -> ThroughputResult:
    """One warm-up batch of other prompts, then the workload.

    Raises:
        ConfigError: the workload does not fit the model's context.
    """
    check_fit(llm, workload.max_prompt_len + workload.max_output_len, "max_prompt_len + max_output_len")
    tokens = corpus_tokens(llm)
    other = workload.model_copy(update={"workload_seed": workload.workload_seed + 1})
    warm_up = throughput_requests(other, tokens)[: llm.config.max_num_seqs]
    generate(llm, [replace(request, output_len=_WARM_UP_OUTPUT) for request in warm_up])
    requests = throughput_requests(workload, tokens)
    llm.reset_stats()
    cuda = uses_cuda(llm)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    began, start = time.monotonic(), time.perf_counter()
    outputs = generate(llm, requests, use_tqdm=use_tqdm)
    seconds = time.perf_counter() - start
    stats = llm.stats
    prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
    output_tokens = sum(output.num_output_tokens for output in outputs)
    return ThroughputResult(
        model=llm.config.model_name,
        engine=llm.config.model_dump(mode="json"),
        workload=workload.model_dump(mode="json"),
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=sum(output.num_cached_tokens for output in outputs),
        output_tokens_per_second=output_tokens / seconds,
        total_tokens_per_second=(prompt_tokens + output_tokens) / seconds,
        steps=stats.steps,
        mean_batch_size=stats.rows / max(stats.steps, 1),
        kv_waste=stats.kv_waste_sum / max(stats.steps, 1),
        preemptions=stats.preemptions,
        forward_seconds=stats.forward_seconds,
        outside_forward_share=max(0.0, 1 - stats.forward_seconds / seconds),
        peak_rss_bytes=peak_rss_bytes(),
        peak_cuda_bytes=torch.cuda.max_memory_allocated() if cuda else None,
        requests=[_times(output, began) for output in outputs],
        machine=machine_of(llm),
    )


def run(parsed: Parsed) -> int:
    """Loads the model, measures, reports."""
    json_file, plot_file = parsed.extras["json_file"], parsed.extras["plot_file"]
    report.check_outputs(json_file, plot_file)
    with LLM(**parsed.get(EngineConfig).model_dump()) as llm:
        result = measure(llm, parsed.get(ThroughputWorkload), use_tqdm=True)
    report.show(f"Throughput of {result.model}", _rows(result), result.machine)
    report.write(result, json_file, plot_file, lambda path: plot.draw_throughput(result, path))
    return 0


def _times(output: RequestOutput, began: float) -> RequestTimes:
    metrics = output.metrics

    def since(moment: float | None) -> float | None:
        return None if moment is None else moment - began

    return RequestTimes(
        scheduled=since(metrics.first_scheduled_time) if metrics else None,
        first_token=since(metrics.first_token_time) if metrics else None,
        last_token=since(metrics.last_token_time) if metrics else None,
        prompt_tokens=len(output.prompt_token_ids),
        output_tokens=output.num_output_tokens,
    )


def _rows(result: ThroughputResult) -> list[report.Row]:
    rows = [
        ("Requests", f"{len(result.requests)}"),
        ("Time", f"{result.seconds:.2f} s"),
        ("Prompt tokens", f"{result.prompt_tokens:,} ({result.cached_tokens:,} from the prefix cache)"),
        ("Output tokens", f"{result.output_tokens:,}"),
        ("Output tok/s", f"{result.output_tokens_per_second:,.1f}"),
        ("Total tok/s", f"{result.total_tokens_per_second:,.1f}"),
        ("Steps", f"{result.steps:,}"),
        ("Mean batch size", f"{result.mean_batch_size:.1f}"),
        ("KV waste", report.percent(result.kv_waste)),
        ("Preemptions", f"{result.preemptions}"),
        ("Outside the forward pass", report.percent(result.outside_forward_share)),
        ("Peak memory (RSS)", report.mebibytes(result.peak_rss_bytes)),
    ]
    if result.peak_cuda_bytes is not None:
        rows.append(("Peak memory (CUDA)", report.mebibytes(result.peak_cuda_bytes)))
    return rows
