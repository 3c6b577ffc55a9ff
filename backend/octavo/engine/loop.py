"""The loop: plan -> execute -> update, in whatever process it is run."""

from __future__ import annotations

import gc
import logging
import time
from dataclasses import dataclass
from typing import Protocol

from octavo.config import EngineConfig
from octavo.core.request import SchedulerStats, Sequence, SequenceOutput
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.core.step import RowResult, StepPlan, StepResult
from octavo.engine.messages import AddRequest
from octavo.engine.recorder import StepTimes
from octavo.errors import DeviceMemoryError
from octavo.execution.executor import Executor, ExecutorInfo, build_executor
from octavo.sampling_params import SamplingParams

logger = logging.getLogger("octavo.engine")

WARM_UP_ID = "octavo-warm-up"


@dataclass(slots=True)
class LoopStats:
    """Sums over the steps since the last reset.

    Attributes:
        wall_seconds: inside `step`, whatever it did.
        forward_seconds: of those, inside the forward pass.
        rows: sequences in the batch, added up over the steps (over `steps`: the mean batch size).
        tokens: computed tokens, prompt and output.
        kv_waste_sum: share of owned KV slots without a token, added up over the steps.
    """

    steps: int = 0
    wall_seconds: float = 0.0
    forward_seconds: float = 0.0
    rows: int = 0
    tokens: int = 0
    kv_waste_sum: float = 0.0
    preemptions: int = 0


class StepObserver(Protocol):
    """Sees every step of a loop."""

    def planned(self, plan: StepPlan, plan_ms: float) -> None:
        """Before the plan is executed."""

    def done(self, times: StepTimes, stats: SchedulerStats) -> None:
        """After a step that was executed and taken in; one that failed or was taken back has no end."""


class EngineLoop:
    """Owns the scheduler and the executor, and moves data between them; one step a call."""

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self.observer: StepObserver | None = None
        self._preemptions_before = 0
        self.stats = LoopStats()

    @classmethod
    def build(cls, config: EngineConfig) -> EngineLoop:
        """Loads the model and sizes everything. Raises ConfigError if it cannot."""
        executor = build_executor(config)
        info = executor.info
        scheduler = Scheduler(
            SchedulerConfig.from_engine(
                config,
                num_blocks=info.num_blocks,
                max_model_len=info.max_model_len,
                eos_token_ids=frozenset(info.eos_token_ids),
            )
        )
        loop = cls(scheduler, executor)
        loop.warm_up()
        # What start-up allocated lives as long as the process: keep the collector from walking it every time.
        gc.collect()
        gc.freeze()
        return loop

    @property
    def info(self) -> ExecutorInfo:
        return self._executor.info

    def add(self, message: AddRequest) -> None:
        """Raises RequestError if the request can never run."""
        self._scheduler.add(
            Sequence(
                request_id=message.request_id,
                token_ids=message.prompt_token_ids + message.output_token_ids,
                num_prompt_tokens=len(message.prompt_token_ids),
                params=message.params,
                seed=message.seed,
                arrival_time=message.arrival_time,
                index=message.index,
                num_sequences=message.num_sequences,
                priority=message.priority,
                cache_salt=message.cache_salt,
                bad_word_ids=message.bad_word_ids,
            ),
            time.monotonic(),
        )

    def abort(self, request_id: str, index: int | None = None) -> list[SequenceOutput]:
        """Frees the request's sequences (or one of them); unknown ids are none of anyone's business."""
        return self._scheduler.abort(request_id, index)

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    def scheduler_stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def step(self) -> list[SequenceOutput]:
        """One step over what is runnable; returns what it added to each sequence.

        Where the device has not enough memory, the step is taken back and the next ones are smaller; the requests fail
        that not even a step of one token is possible for. If the executor raises anything else, so does this, and every
        request of the step is over: the loop can go on with the others.
        """
        start = time.perf_counter()
        plan = self._scheduler.plan(time.monotonic())
        planned = time.perf_counter()
        if self.observer is not None:
            self.observer.planned(plan, 1e3 * (planned - start))
        begin = time.perf_counter()
        try:
            result = self._executor.execute(plan)
        except DeviceMemoryError as error:
            return self._retreat(plan, error)
        except BaseException as error:
            # Ctrl-C in a notebook too: the plan must not stay open, nor what it half did be taken for done.
            self._scheduler.update(plan, _failed(plan, error), time.monotonic())
            raise
        executed = time.perf_counter()
        outputs = self._scheduler.update(plan, result, time.monotonic())
        stats = self.stats
        stats.steps += 1
        stats.rows += len(plan.rows)
        stats.tokens += plan.num_tokens
        stats.forward_seconds += result.forward_seconds
        snapshot = self._scheduler.stats()
        stats.kv_waste_sum += snapshot.kv_waste
        stats.preemptions = snapshot.num_preemptions - self._preemptions_before
        end = time.perf_counter()
        stats.wall_seconds += end - start
        if self.observer is not None:
            times = StepTimes(1e3 * (planned - start), 1e3 * (executed - begin), 1e3 * (end - executed))
            self.observer.done(times, snapshot)
        return outputs

    def _retreat(self, plan: StepPlan, error: DeviceMemoryError) -> list[SequenceOutput]:
        if self._scheduler.retreat(plan):
            logger.warning("%s; its requests are run again in smaller steps", error)
            return []
        return self._scheduler.update(plan, _failed(plan, error), time.monotonic())

    def reset_stats(self) -> None:
        self.stats = LoopStats()
        self._preemptions_before = self._scheduler.stats().num_preemptions

    def warm_up(self) -> None:
        """Produces one token, so that the first request finds every lazy thing done."""
        self.add(
            AddRequest(
                request_id=WARM_UP_ID,
                prompt_token_ids=[0],
                params=SamplingParams(max_tokens=1, temperature=0, ignore_eos=True),
                seed=0,
                arrival_time=time.monotonic(),
            )
        )
        while self.has_work():
            for output in self.step():
                if output.error is not None:
                    raise RuntimeError(f"the warm-up token failed: {output.error}")
        self.reset_stats()

    def shutdown(self) -> None:
        self._executor.shutdown()


def _failed(plan: StepPlan, error: BaseException) -> StepResult:
    reason = f"the step failed: {type(error).__name__}: {error}"
    return StepResult(plan.step_id, [RowResult([], error=reason) for _ in plan.rows])
