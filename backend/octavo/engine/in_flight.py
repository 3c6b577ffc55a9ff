"""InFlight: one request as the front knows it, enough to stream it and to hand it to another core."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from octavo.engine.messages import AddRequest
from octavo.engine.output import RequestAssembler
from octavo.engine.stream import OutputStream


@dataclass(slots=True)
class InFlight:
    """
    Attributes:
        message: what the core was first told of it.
        last_token_time: seconds on the monotonic clock; None before the first token.
    """

    message: AddRequest
    assembler: RequestAssembler
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
