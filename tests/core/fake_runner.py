"""A runner without a network: it keeps, for every token slot of every block, what the real KV there would depend on
(the salt and all tokens up to it), and checks each plan against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.core.request import Sequence, SequenceOutput
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.core.step import NewSequence, RowResult, StepPlan, StepResult, StepRow, TokenLogprobs
from octavo.sampling_params import SamplingParams

EOS = 0
VOCAB = 50


def make_config(**changes: Any) -> SchedulerConfig:
    values: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_num_partial_prefills": 2,
        "long_prefill_token_threshold": 8,
        "policy": "fcfs",
        "block_size": 4,
        "num_blocks": 64,
        "max_model_len": 256,
        "eos_token_ids": frozenset({EOS}),
    }
    return SchedulerConfig(**{**values, **changes})


def make_sequence(request_id: str = "a", prompt: list[int] | int = 5, **changes: Any) -> Sequence:
    """`prompt` may be a length. Fields of Sequence and of SamplingParams alike can be given."""
    tokens = list(range(1, prompt + 1)) if isinstance(prompt, int) else list(prompt)
    outputs = changes.pop("output", [])
    own = {
        name: changes.pop(name)
        for name in ("priority", "cache_salt", "arrival_time", "index", "seed")
        if name in changes
    }
    params = SamplingParams(**changes)
    alone = outputs or own.get("index")
    return Sequence(
        request_id=request_id,
        token_ids=tokens + outputs,
        num_prompt_tokens=len(tokens),
        params=params,
        num_sequences=1 if alone else params.n,
        **{"seed": 7, "arrival_time": 0.0, **own},
    )


def draw(seed: int, index: int, position: int) -> int:
    """The token sampled at `position`: depends on nothing else, as in the real sampler; never EOS."""
    return 1 + hash((seed, index, position)) % (VOCAB - 1)


@dataclass
class Row:
    new: NewSequence
    tokens: list[int]
    table: list[int]


@dataclass
class FakeRunner:
    config: SchedulerConfig
    salts: dict[str, str | None] = field(default_factory=dict)
    sample: Callable[[int, int, int], int] = draw
    rows: dict[int, Row] = field(default_factory=dict)
    content: dict[tuple[int, int], int] = field(default_factory=dict)
    num_tokens_computed: int = 0

    def execute(self, plan: StepPlan, errors: dict[int, str] | None = None) -> StepResult:
        self.apply(plan)
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        assert len({row.slot for row in plan.rows}) == len(plan.rows), "two rows in one slot"
        written: Counter[int] = Counter()
        results = [self._forward(row, written) for row in plan.rows]
        assert all(count == 1 for count in written.values()), "two sequences write into one block"
        self.num_tokens_computed += plan.num_tokens
        for place, error in (errors or {}).items():
            results[place] = RowResult([], error=error)
        return StepResult(plan.step_id, results)

    def apply(self, plan: StepPlan) -> None:
        """What a runner does of a plan before it computes anything."""
        for slot in plan.freed_slots:
            del self.rows[slot]
        for new in plan.new:
            assert new.slot not in self.rows, "slot reused before it was freed"
            assert 0 <= new.slot < self.config.max_num_seqs
            self.rows[new.slot] = Row(new, list(new.token_ids), list(new.block_ids))
        for slot, blocks in plan.new_blocks:
            assert blocks
            self.rows[slot].table.extend(blocks)
        for slot, place, block in plan.replaced_blocks:
            self.rows[slot].table[place] = block
        sources = {source for source, _ in plan.block_copies}
        destinations = [destination for _, destination in plan.block_copies]
        assert not sources.intersection(destinations), "the result depends on the order of the copies"
        assert len(set(destinations)) == len(destinations)
        for source, destination in plan.block_copies:
            for offset in range(self.config.block_size):
                if (source, offset) in self.content:
                    self.content[destination, offset] = self.content[source, offset]

    def _chain(self, row: Row) -> list[int]:
        value, chain = hash(self.salts.get(row.new.request_id)), []
        for token in row.tokens:
            value = hash((value, token))
            chain.append(value)
        return chain

    def _forward(self, step: StepRow, written: Counter[int]) -> RowResult:
        row = self.rows[step.slot]
        size, end = self.config.block_size, step.start + step.num_tokens
        assert step.num_tokens >= 1
        assert end <= len(row.tokens), "a token that isn't known yet is planned"
        assert end <= len(row.table) * size, "the block table doesn't cover the row"
        chain = self._chain(row)
        for position in range(step.start):
            assert self.content.get((row.table[position // size], position % size)) == chain[position], (
                f"{row.new.request_id}/{row.new.index}: the cache doesn't hold the prefix at {position}"
            )
        for position in range(step.start, end):
            self.content[row.table[position // size], position % size] = chain[position]
        for block in row.table[step.start // size : (end - 1) // size + 1]:
            written[block] += 1
            holders = sum(block in other.table for other in self.rows.values())
            assert holders == 1, "a shared block is written"
        return self._results(step, row, end)

    def _results(self, step: StepRow, row: Row, end: int) -> RowResult:
        is_last = end == len(row.tokens)
        assert (step.num_samples > 0) == is_last
        params, index = row.new.params, row.new.index
        drawn = [self.sample(row.new.seed, index + i, end) for i in range(step.num_samples)]
        if drawn:
            row.tokens.append(drawn[0])
        logprobs = None if params.logprobs is None else [_logprob(token) for token in drawn]
        prompt_logprobs = None
        if step.num_prompt_logprobs is not None:
            assert step.num_prompt_logprobs == params.prompt_logprobs
            positions = range(max(step.start, step.prompt_logprobs_start), min(end, row.new.num_prompt_tokens - 1))
            assert positions, "prompt logprobs are asked for where there are none"
            prompt_logprobs = [_logprob(row.tokens[position + 1]) for position in positions]
        return RowResult(drawn, logprobs, prompt_logprobs)


def _logprob(token: int) -> TokenLogprobs:
    return TokenLogprobs([token], [-1.0], 1)


@dataclass
class Collected:
    """What a front would have seen of one sequence."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    first_scheduled_time: float | None = None


class Harness:
    """Scheduler and fake runner together; collects the outputs and checks the invariants after every call."""

    def __init__(self, config: SchedulerConfig | None = None, sample: Callable[[int, int, int], int] = draw) -> None:
        self.config = config or make_config()
        self.scheduler = Scheduler(self.config)
        self.runner = FakeRunner(self.config, sample=sample)
        self.seen: dict[tuple[str, int], Collected] = {}
        self.now = 0.0
        self.plans: list[StepPlan] = []

    def add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence, self.now)
        self.runner.salts[sequence.request_id] = sequence.cache_salt
        for i in range(sequence.num_sequences):
            self.seen[sequence.request_id, sequence.index + i] = Collected()
        self.scheduler.check_invariants()

    def abort(self, request_id: str, index: int | None = None) -> list[SequenceOutput]:
        outputs = self.scheduler.abort(request_id, index)
        self.collect(outputs)
        self.scheduler.check_invariants()
        return outputs

    def plan(self) -> StepPlan:
        had_work, before = self.scheduler.has_work(), self.scheduler.stats()
        plan = self.scheduler.plan(self.now)
        after = self.scheduler.stats()
        preempted = after.num_preemptions - before.num_preemptions
        if preempted:
            assert after.num_waiting == before.num_waiting + preempted, "admitted in a step without blocks"
        assert bool(plan.rows) == had_work
        self.scheduler.check_invariants()
        self.plans.append(plan)
        return plan

    def step(self, errors: dict[int, str] | None = None) -> list[SequenceOutput]:
        plan = self.plan()
        return self.finish(plan, errors)

    def finish(self, plan: StepPlan, errors: dict[int, str] | None = None) -> list[SequenceOutput]:
        result = self.runner.execute(plan, errors)
        self.now += 0.01
        outputs = self.scheduler.update(plan, result, self.now)
        self.collect(outputs)
        self.scheduler.check_invariants()
        return outputs

    def starve(self, plan: StepPlan) -> bool:
        """The step finds too little memory; whether it was taken back."""
        self.runner.apply(plan)
        taken_back = self.scheduler.retreat(plan)
        if taken_back:
            self.scheduler.check_invariants()
        else:
            failed = StepResult(plan.step_id, [RowResult([], error="out of memory") for _ in plan.rows])
            self.collect(self.scheduler.update(plan, failed, self.now))
            self.scheduler.check_invariants()
        return taken_back

    def run(self, max_steps: int = 2000) -> int:
        """Steps until nothing is left; the number of steps."""
        for count in range(max_steps):
            if not self.scheduler.has_work():
                return count
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps: {self.scheduler.stats()}")

    def collect(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            seen = self.seen[output.request_id, output.index]
            assert seen.finish_reason is None, "an output after the last one"
            assert output.token_ids or output.prompt_logprobs or output.finish_reason, "an empty output"
            seen.token_ids.extend(output.token_ids)
            seen.logprobs.extend(output.logprobs or [])
            seen.prompt_logprobs.extend(output.prompt_logprobs or [])
            seen.finish_reason = output.finish_reason
            seen.stop_reason = output.stop_reason
            seen.error = output.error
            seen.num_cached_tokens = output.num_cached_tokens
            seen.first_scheduled_time = output.first_scheduled_time

    def expect_idle(self) -> None:
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_usage, stats.kv_waste) == (0, 0, 0.0, 0.0)
        assert not self.scheduler.has_work()
