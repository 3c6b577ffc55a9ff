"""One sequence's state, from arrival to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from octavo.core.step import TokenLogprobs
from octavo.outputs import FinishReason
from octavo.sampling_params import SamplingParams


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence the scheduler plans for. (request_id, index) names it.

    A request with n > 1 is one sequence (index 0) with `num_sequences` = n until its prompt is computed; then n - 1
    forks join it, each a Sequence of its own.

    Attributes:
        token_ids: prompt, then output.
        num_computed_tokens: tokens whose KV is in the cache.
        block_ids: its block table.
        slot: its row in the runner's batch while running, else None.
        seed: fixed at admission, so a preempted or resumed sequence draws the same tokens.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    arrival_time: float
    index: int = 0
    num_sequences: int = 1
    priority: int = 0
    cache_salt: str | None = None
    bad_word_ids: list[list[int]] = field(default_factory=list)
    max_tokens: int = 0
    """Resolved: params.max_tokens bounded by the room in the context. Set by the scheduler's `add`."""
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when first scheduled."""
    block_ids: list[int] = field(default_factory=list)
    slot: int | None = None
    first_scheduled_time: float | None = None
    num_preemptions: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens


@dataclass(slots=True)
class SequenceOutput:
    """What one step added to one sequence; what leaves the scheduler, and crosses to the front."""

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    first_scheduled_time: float | None = None
    error: str | None = None
    """The sequence failed alone; finish_reason is then `abort`."""


@dataclass(slots=True)
class SchedulerStats:
    """A snapshot for metrics. Counters are totals since start."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    """Share of blocks owned by unfinished requests, 0..1 (cached, reclaimable blocks count as free)."""
    kv_waste: float = 0.0
    """Share of owned slots that hold no token, 0..1."""
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    """Prompt tokens looked up."""
    prefix_cache_hits: int = 0
    """Prompt tokens found."""
