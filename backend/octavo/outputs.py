"""What a caller gets back. vLLM's names; the same classes carry whole results (LLM) and deltas (AsyncEngine)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(slots=True)
class Logprob:
    """One candidate token at one position. `rank` is 1 for the likeliest token of the vocabulary.

    `decoded_token` is the token's text alone (invalid UTF-8 shown as U+FFFD); `token_bytes` are its exact bytes.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None
    token_bytes: bytes | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence, or what one step added to it.

    Attributes:
        index: 0 .. n-1.
        logprobs: one dict a token (token id -> Logprob), the chosen token first, then the top ones by rank.
        stop_reason: the stop string or stop token id that ended it; None for end-of-sequence or length.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Seconds on the monotonic clock, which front and core share; None until it happened."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """One request's results so far: everything from `LLM`, the news since the last one from `AsyncEngine`.

    `prompt_logprobs[0]` is None: nothing precedes the first token. In a stream it comes once, with the first output.
    `num_output_tokens` always counts the tokens so far over all sequences, deltas or not.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    metrics: RequestMetrics | None = field(default=None, repr=False)
