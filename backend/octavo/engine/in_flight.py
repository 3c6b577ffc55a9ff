"""InFlight: one request as the front knows it, enough to stream it and to hand it to another core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from octavo.engine.messages import AddRequest
from octavo.engine.output import RequestAssembler
from octavo.engine.pulse import mark_of
from octavo.engine.stream import OutputStream
from octavo.observe.tracing import Operation


@dataclass(frozen=True, slots=True)
class RequestState:
    """
    Attributes:
        mark: what stands for the request in the core's recorded steps.
        phase: `held` while there is no core for it, `waiting` before its first token, then `decoding`.
        age: seconds since it came.
        idle: seconds since its last token, or since it came.
    """

    request_id: str
    mark: int
    phase: Literal["held", "waiting", "decoding"]
    age: float
    idle: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_sequences: int


@dataclass(slots=True)
class InFlight:
    """
    Attributes:
        message: what the core was first told of it.
        operation: what the caller asked for, as traces name it.
        trace_headers: `traceparent` and `tracestate` of the caller's own trace, where there is one.
        last_token_time: seconds on the monotonic clock; None before the first token.
    """

    message: AddRequest
    assembler: RequestAssembler
    operation: Operation = "text_completion"
    trace_headers: Mapping[str, str] | None = None
    stream: OutputStream = field(default_factory=OutputStream)
    last_token_time: float | None = None

    @property
    def arrival_time(self) -> float:
        return self.message.arrival_time

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.message.prompt_token_ids)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of a request that has no token yet."""
        return self.num_prompt_tokens if self.last_token_time is None else 0

    def state(self, now: float, *, held: bool) -> RequestState:
        """
        Args:
            now: seconds on the monotonic clock.
            held: no core has the request.
        """
        seen = self.last_token_time
        return RequestState(
            request_id=self.message.request_id,
            mark=mark_of(self.message.request_id),
            phase="held" if held else "waiting" if seen is None else "decoding",
            age=round(now - self.arrival_time, 3),
            idle=round(now - (self.arrival_time if seen is None else seen), 3),
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.assembler.num_output_tokens,
            num_sequences=self.message.params.n,
        )

    def resume(self) -> list[AddRequest]:
        """What tells another core to go on where the last one was.

        That is the request itself if it has no tokens yet, else each of its sequences that has not ended, with its
        tokens so far. Draws are keyed by position, so they go on alike.
        """
        unfinished = self.assembler.unfinished()
        if not any(tokens for _, tokens in unfinished):
            self.assembler.forget_prompt_logprobs()
            return [self.message]
        return [
            msgspec.structs.replace(self.message, index=index, num_sequences=1, output_token_ids=tokens)
            for index, tokens in unfinished
        ]
