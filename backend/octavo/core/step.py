"""The two messages between planning and execution: StepPlan (what to run) and StepResult (what came out).

A running sequence occupies a *slot*: a row of the runner's persistent batch, 0 .. max_num_seqs-1, stable from
admission to finish, abort or preemption. The plan says only what changed since the last one.

Order in which a runner applies a plan: `freed_slots`, `new`, `new_blocks`, `replaced_blocks`, then
`block_copies` on the cache, then the forward of `rows`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.sampling_params import SamplingParams


@dataclass(slots=True)
class NewSequence:
    """A sequence that enters the batch: new, forked off a running one (n > 1), returned after preemption, or resumed
    after a restart.

    Attributes:
        token_ids: prompt, then the tokens generated so far (none for one that is new).
        seed: key of the sequence's random draws, with `index` and the position.
        block_ids: its whole block table so far; blocks may be shared (prefix-cache hits, forks).
    """

    slot: int
    request_id: str
    index: int
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    block_ids: list[int]
    bad_word_ids: list[list[int]] = field(default_factory=list)
    """`params.bad_words` as token ids; the front tokenises them."""


@dataclass(slots=True)
class StepRow:
    """One sequence's share of the step: `num_tokens` tokens from position `start`.

    `num_samples` is 0 while its known tokens are not all computed after this step (a partial prefill), 1 normally, and
    n for the step that ends the prompt of an n-sequence request: n first tokens are drawn, with indices 0 .. n-1.
    `num_prompt_logprobs`: None, or how many top logprobs to give for each prompt token that this chunk predicts: the
    chunk's row at position p predicts the prompt token at p + 1, for p + 1 < num_prompt_tokens and
    p >= `prompt_logprobs_start` (positions before it were reported before a preemption).
    """

    slot: int
    start: int
    num_tokens: int
    num_samples: int
    num_prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    request_id: str = ""
    """For reports alone."""


@dataclass(slots=True)
class StepPlan:
    """What the runner does in one step. Empty `rows`: nothing to compute, state changes only."""

    step_id: int
    rows: list[StepRow] = field(default_factory=list)
    new: list[NewSequence] = field(default_factory=list)
    freed_slots: list[int] = field(default_factory=list)
    new_blocks: list[tuple[int, list[int]]] = field(default_factory=list)
    """(slot, block ids to append to its table)."""
    replaced_blocks: list[tuple[int, int, int]] = field(default_factory=list)
    """(slot, index in its table, new block id): copy-on-write."""
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    """(source block, destination block), whole blocks, in every layer."""

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


class TokenLogprobs(NamedTuple):
    """Logprobs at one position: the chosen (or prompt) token first, then the top ones, likeliest first.

    The chosen token is repeated among the top ones if it belongs there. `rank` is the chosen token's, from 1.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


@dataclass(slots=True)
class RowResult:
    """What came out for the row at the same index of the plan.

    Attributes:
        token_ids: `num_samples` tokens.
        logprobs: one for each of `token_ids` if the params ask for logprobs.
        prompt_logprobs: one for each prompt token this chunk predicted, if asked for.
        error: the request alone failed (not the step); the other fields are then empty.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    error: str | None = None


@dataclass(slots=True)
class StepResult:
    """`rows` is parallel to the plan's rows. `forward_seconds` is the time inside the forward pass."""

    step_id: int
    rows: list[RowResult]
    forward_seconds: float = 0.0
