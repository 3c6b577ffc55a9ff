"""What a step costs in Python, with the network left out: plan, build the batch, sample, update, make text.

    python benchmarks/step_overhead.py [--seqs 64] [--steps 300] [--context 512]

Everything is octavo's own code except the decoder, which returns the same logits every time. Prints the median and the
99th percentile of each part, and of the whole, in milliseconds, on one thread. Target: under 3 ms with 64 running
sequences. What happens in the core and what in the front's process is added up here; in a server they overlap.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise

import torch
from rich.console import Console
from rich.table import Table

from octavo.config import DEFAULT_MODEL
from octavo.core.request import Sequence
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.engine.messages import StepOutputs, core_decoder, encoder
from octavo.engine.output import RequestAssembler
from octavo.execution.batch import PersistentBatch
from octavo.execution.runner import Runner
from octavo.model.loading import resolve_model
from octavo.sampling.sampler import Sampler
from octavo.sampling_params import SamplingParams
from octavo.text.tokenizer import Tokenizer
from octavo_kernels import AttentionBatch, KVCache

CPU = torch.device("cpu")
BLOCK_SIZE = 16
# The network's output is not what is measured: a narrow one keeps the argmax, which a kernel does, out of the way.
VOCABULARY = 512


class NoNetwork:
    """In the decoder's place: the same logits for every row, made once."""

    def __init__(self, max_rows: int) -> None:
        self._hidden = torch.zeros(max_rows, 1)
        self._logits = torch.randn(max_rows, VOCABULARY)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch, kv_caches: list[KVCache]
    ) -> torch.Tensor:
        return self._hidden[: len(token_ids)]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._logits[: len(hidden)]


def measure(num_seqs: int, context: int, steps: int) -> dict[str, list[float]]:
    """Seconds of each part of a step, over `steps` steps of `num_seqs` decoding sequences."""
    length = context + steps + 64
    blocks = num_seqs * -(-length // BLOCK_SIZE)
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=1024,
            max_num_partial_prefills=4,
            long_prefill_token_threshold=512,
            policy="fcfs",
            block_size=BLOCK_SIZE,
            num_blocks=blocks,
            max_model_len=length,
        )
    )
    batch = PersistentBatch(
        max_num_seqs=num_seqs, max_num_tokens=1024, max_model_len=length, block_size=BLOCK_SIZE, device=CPU
    )
    runner = Runner(NoNetwork(1024), [], batch, Sampler(VOCABULARY, (), batch.token_ids, CPU))  # type: ignore[arg-type]
    tokenizer = Tokenizer.load(resolve_model(DEFAULT_MODEL))
    params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
    assemblers = {}
    for number in range(num_seqs):
        request_id, prompt = str(number), list(range(3, 3 + context % 500)) + [number + 1] * (context - context % 500)
        scheduler.add(Sequence(request_id, prompt, len(prompt), params, number, 0.0), 0.0)
        assemblers[request_id] = RequestAssembler(request_id, None, prompt, params, tokenizer, 0.0, delta=True)
    times: dict[str, list[float]] = {"plan": [], "batch and sample": [], "update": [], "frames": [], "text": []}
    encode, decode = encoder().encode, core_decoder().decode
    while len(times["plan"]) < steps:
        marks = [time.perf_counter()]
        plan = scheduler.plan(marks[0])
        marks.append(time.perf_counter())
        result = runner.execute(plan)
        marks.append(time.perf_counter())
        outputs = scheduler.update(plan, result, marks[-1])
        message = StepOutputs(outputs, scheduler.stats())
        marks.append(time.perf_counter())
        received = decode(encode(message))
        marks.append(time.perf_counter())
        if not isinstance(received, StepOutputs):
            raise TypeError(f"a frame of {type(received).__name__} came back")
        for output in received.outputs:
            assemblers[output.request_id].feed([output], marks[-1])
        marks.append(time.perf_counter())
        if plan.num_tokens == num_seqs == len(plan.rows):
            for part, seconds in zip(times, (b - a for a, b in pairwise(marks)), strict=True):
                times[part].append(seconds)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqs", type=int, default=64, help="running sequences")
    parser.add_argument("--steps", type=int, default=300, help="steps to measure")
    parser.add_argument("--context", type=int, default=512, help="prompt tokens of each")
    given = parser.parse_args()
    torch.set_num_threads(1)
    times = measure(given.seqs, given.context, given.steps)
    times["all"] = [sum(parts) for parts in zip(*times.values(), strict=True)]
    table = Table(title=f"Python in a step, {given.seqs} sequences, {given.steps} steps, milliseconds")
    for column in ("part", "median", "p99"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for part, seconds in times.items():
        centiles = statistics.quantiles(seconds, n=100)
        table.add_row(part, f"{statistics.median(seconds) * 1e3:.3f}", f"{centiles[98] * 1e3:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
