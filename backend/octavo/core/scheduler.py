"""Scheduler: takes sequences in, plans steps, and turns their results into outputs. Its clock is its callers'.

The loop is `plan`, execute, `update`, and again; one step is in flight at a time. `add` and `abort` may come at any
moment, also between the two.
"""

from __future__ import annotations

from octavo.core.admission import resolve_max_tokens
from octavo.core.entry import Entry, Standing
from octavo.core.integrity import IntegrityError
from octavo.core.planner import Planner
from octavo.core.request import SchedulerStats, Sequence, SequenceOutput, Status
from octavo.core.roster import Roster
from octavo.core.scheduler_config import SchedulerConfig
from octavo.core.step import RowResult, StepPlan, StepResult, StepRow, TokenLogprobs
from octavo.errors import RequestError
from octavo.outputs import FinishReason

__all__ = ["Scheduler", "SchedulerConfig"]


class Scheduler:
    """Plans over plain data: no tensors, no I/O, no clock, one thread."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self._roster = Roster(config)
        self._planner = Planner(config, self._roster)
        self._requests: dict[str, dict[int, Entry]] = {}
        self._num_added = 0
        self._eos_endings: dict[int, int | None] = dict.fromkeys(config.eos_token_ids)
        self._in_flight: tuple[StepPlan, list[Entry]] | None = None

    def add(self, sequence: Sequence, now: float) -> None:
        """Queues a sequence: a new one, or one that resumes with the output it had. Sets its `max_tokens`.

        Raises:
            RequestError: it can never run, or its (request_id, index) is already here.
        """
        entries = self._requests.get(sequence.request_id, {})
        indices = set(range(sequence.index, sequence.index + sequence.num_sequences))
        taken = indices.intersection(index for entry in entries.values() for index in _claimed_indices(entry))
        if taken:
            raise RequestError(
                f"request id '{sequence.request_id}' is already in use (sequence {min(taken)}); choose another",
                "request_id",
            )
        sequence.max_tokens = resolve_max_tokens(sequence, self.config)
        self._num_added += 1
        entry = Entry(
            sequence=sequence,
            standing=self._standing(sequence, now),
            endings=self._endings(sequence),
            min_tokens=sequence.params.min_tokens,
            prompt_logprobs=sequence.params.prompt_logprobs if sequence.index == 0 else None,
        )
        if sequence.num_output_tokens:
            entry.reported = sequence.num_prompt_tokens - 1  # they came before the output it resumes with
        self._requests.setdefault(sequence.request_id, {})[sequence.index] = entry
        self._roster.waiting.add(entry)

    def abort(self, request_id: str, index: int | None = None) -> list[SequenceOutput]:
        """Ends a request, or one sequence of it, and frees what it owns. Unknown or finished ones: nothing happens.

        If a step is in flight, what it still brings for these sequences is dropped.

        Returns:
            an output with finish_reason `abort` for each sequence ended.
        """
        outputs: list[SequenceOutput] = []
        for entry in list(self._requests.get(request_id, {}).values()):
            ended = [i for i in entry.live_indices if index is None or i == index]
            outputs.extend(_output(entry, i, [], finish_reason="abort") for i in ended)
            entry.dropped.update(ended)
            if ended and not entry.live_indices:
                self._end(entry)
        return outputs

    def plan(self, now: float) -> StepPlan:
        """The next step. Its rows are empty only if nothing is left to do.

        Raises:
            RuntimeError: the last plan's `update` is still to come.
        """
        if self._in_flight is not None:
            raise RuntimeError(f"step {self._in_flight[0].step_id} is in flight: call update() before plan()")
        self._in_flight = self._planner.plan(now)
        return self._in_flight[0]

    def update(self, plan: StepPlan, result: StepResult, now: float) -> list[SequenceOutput]:
        """Takes in what a step brought: tokens, ends, forks, and blocks that can be found from now on.

        A step that failed as a whole is reported by an `error` in every row; each failed row ends its whole request.

        Raises:
            RuntimeError: this is not the step in flight, or its results do not match its rows.
        """
        if self._in_flight is None or self._in_flight[0] is not plan or result.step_id != plan.step_id:
            raise RuntimeError(f"the result of step {result.step_id} does not belong to the step in flight")
        if len(result.rows) != len(plan.rows):
            raise RuntimeError(f"step {plan.step_id} has {len(plan.rows)} rows, but {len(result.rows)} results")
        entries = self._in_flight[1]
        self._in_flight = None
        self._planner.budget.succeed()
        outputs: list[SequenceOutput] = []
        for entry, brought in zip(entries, result.rows, strict=True):
            if brought.error is not None and entry.sequence.status is not Status.FINISHED:
                outputs.extend(self._fail(entry.sequence.request_id, brought.error))
        for entry, row, brought in zip(entries, plan.rows, result.rows, strict=True):
            if entry.sequence.status is not Status.FINISHED:
                self._take(entry, row, brought, outputs)
        return outputs

    def retreat(self, plan: StepPlan) -> bool:
        """Takes the step in flight back, for which the device had not enough memory: its sequences wait again, and the
        next steps have at most half its tokens, until a number of them went well. The runner has applied the plan, and
        computed nothing that counts.

        Returns:
            False if the step was of one token, the least there is. It is still in flight then.

        Raises:
            RuntimeError: this is not the step in flight.
        """
        if self._in_flight is None or self._in_flight[0] is not plan:
            raise RuntimeError(f"step {plan.step_id} is not the step in flight")
        if not self._planner.budget.shrink(plan.num_tokens):
            return False
        for entry in self._in_flight[1]:
            if entry.sequence.status is Status.RUNNING:
                self._planner.preempt(entry)
        self._in_flight = None
        return True

    def has_work(self) -> bool:
        """Whether any sequence is unfinished. Slots freed since the last plan can wait for the next one."""
        return bool(self._requests)

    def stats(self) -> SchedulerStats:
        roster, pool = self._roster, self._roster.kv_cache.pool
        owned = pool.num_used * self.config.block_size
        return SchedulerStats(
            num_running=len(roster.running),
            num_waiting=len(roster.waiting),
            kv_usage=pool.num_used / pool.num_blocks,
            kv_waste=roster.kv_cache.empty_slots(roster.running) / owned if owned else 0.0,
            num_preemptions=self._planner.num_preemptions,
            prefix_cache_queries=self._planner.prefix_cache_queries,
            prefix_cache_hits=self._planner.prefix_cache_hits,
        )

    def check_invariants(self) -> None:
        """Walks all blocks, slots and sequences: for tests, and for the engine when it is idle.

        Raises:
            IntegrityError: something is lost, doubled or inconsistent.
        """
        roster = self._roster
        roster.check_invariants()
        known = {id(entry) for entries in self._requests.values() for entry in entries.values()}
        held = [*roster.running, *roster.waiting.first(len(roster.waiting))]
        if len(held) != len(known) or {id(entry) for entry in held} != known:
            raise IntegrityError("the requests known are not those that run or wait")

    def _standing(self, sequence: Sequence, now: float) -> Standing:
        priority = sequence.priority if self.config.policy == "priority" else 0
        return Standing(priority, min(sequence.arrival_time, now), self._num_added, sequence.index)

    def _endings(self, sequence: Sequence) -> dict[int, int | None]:
        params = sequence.params
        eos = {} if params.ignore_eos else self._eos_endings
        if not params.stop_token_ids:
            return eos
        return {**{token: token for token in params.stop_token_ids}, **eos}

    def _take(self, entry: Entry, row: StepRow, brought: RowResult, outputs: list[SequenceOutput]) -> None:
        """One row's result into the sequence's state and output."""
        if len(brought.token_ids) != row.num_samples:
            raise RuntimeError(f"a row of {row.num_samples} samples brought {len(brought.token_ids)} tokens")
        end = row.start + row.num_tokens
        self._roster.kv_cache.advance(entry, end)
        if row.num_prompt_logprobs is not None:
            entry.reported = min(end, entry.sequence.num_prompt_tokens - 1)
        if row.num_samples == 1:
            outputs.append(self._append(entry, brought.token_ids[0], brought.logprobs, brought.prompt_logprobs))
        elif row.num_samples > 1:
            self._fork(entry, brought, outputs)
        elif brought.prompt_logprobs and entry.sequence.index not in entry.dropped:
            outputs.append(_output(entry, entry.sequence.index, [], prompt_logprobs=brought.prompt_logprobs))

    def _append(
        self,
        entry: Entry,
        token: int,
        logprobs: list[TokenLogprobs] | None,
        prompt_logprobs: list[TokenLogprobs] | None = None,
    ) -> SequenceOutput:
        """Adds a sampled token and, if it is the last one, ends the sequence."""
        sequence = entry.sequence
        sequence.token_ids.append(token)
        output = SequenceOutput(
            sequence.request_id,
            sequence.index,
            [token],
            logprobs,
            prompt_logprobs,
            num_cached_tokens=sequence.num_cached_tokens,
            first_scheduled_time=sequence.first_scheduled_time,
        )
        count = len(sequence.token_ids) - sequence.num_prompt_tokens
        if token in entry.endings and count >= entry.min_tokens:
            output.finish_reason = "stop"
            output.stop_reason = entry.endings[token]
        elif count >= sequence.max_tokens:
            output.finish_reason = "length"
        if output.finish_reason is not None:
            self._end(entry)
        return output

    def _fork(self, entry: Entry, brought: RowResult, outputs: list[SequenceOutput]) -> None:
        """The prompt of an n-sequence request is computed: it becomes n sequences that share its blocks.

        All of them have joined before the first can end, so that the shared blocks never lack an owner.
        """
        indices = entry.live_indices
        children = {}
        for index in range(1, entry.sequence.num_sequences):
            if index in indices:
                child = _child(entry, index)
                self._roster.join(entry, child)
                self._requests[child.sequence.request_id][index] = child
                children[index] = child
            else:
                self._roster.slots.reserve(-1)
        entry.sequence.num_sequences = 1
        for index, token in enumerate(brought.token_ids):
            logprobs = None if brought.logprobs is None else [brought.logprobs[index]]
            if index in children:
                outputs.append(self._append(children[index], token, logprobs))
            elif index in indices:
                outputs.append(self._append(entry, token, logprobs, brought.prompt_logprobs))
        if 0 not in indices:
            self._end(entry)

    def _fail(self, request_id: str, error: str) -> list[SequenceOutput]:
        outputs = self.abort(request_id)
        for output in outputs:
            output.error = error
        return outputs

    def _end(self, entry: Entry) -> None:
        sequence = entry.sequence
        self._roster.leave(entry)
        entries = self._requests[sequence.request_id]
        del entries[sequence.index]
        if not entries:
            del self._requests[sequence.request_id]


def _claimed_indices(entry: Entry) -> range:
    return range(entry.sequence.index, entry.sequence.index + entry.sequence.num_sequences)


def _child(parent: Entry, index: int) -> Entry:
    source = parent.sequence
    sequence = Sequence(
        request_id=source.request_id,
        token_ids=list(source.token_ids),
        num_prompt_tokens=source.num_prompt_tokens,
        params=source.params,
        seed=source.seed,
        arrival_time=source.arrival_time,
        index=index,
        priority=source.priority,
        cache_salt=source.cache_salt,
        bad_word_ids=source.bad_word_ids,
        max_tokens=source.max_tokens,
        num_cached_tokens=source.num_cached_tokens,
        first_scheduled_time=source.first_scheduled_time,
    )
    return Entry(
        sequence=sequence,
        standing=parent.standing._replace(sequence_index=index),
        endings=parent.endings,
        min_tokens=parent.min_tokens,
        prompt_logprobs=None,
    )


def _output(
    entry: Entry,
    index: int,
    token_ids: list[int],
    prompt_logprobs: list[TokenLogprobs] | None = None,
    finish_reason: FinishReason | None = None,
) -> SequenceOutput:
    sequence = entry.sequence
    return SequenceOutput(
        sequence.request_id,
        index,
        token_ids,
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish_reason,
        num_cached_tokens=sequence.num_cached_tokens,
        first_scheduled_time=sequence.first_scheduled_time,
    )
