"""One choice of an answer: takes engine deltas in, gives parts of the answer out, in a stream or once at the end."""

from __future__ import annotations

from typing import Any

from octavo.outputs import CompletionOutput, FinishReason, RequestOutput
from octavo.server.errors import ApiError
from octavo.server.logprobs import CompletionLogprobs, Position, chat_logprob, joined


def check_not_aborted(output: CompletionOutput) -> None:
    """OpenAI knows no finish reason for a request that the server ended: it is an error. Raises ApiError (503)."""
    if output.finish_reason == "abort":
        raise ApiError(503, "the request was ended by the server before it was complete", code="request_aborted")


class ChatChoice:
    """A choice of /v1/chat/completions.

    Args:
        num_top: top logprobs a token; None: no logprobs.
    """

    def __init__(self, index: int, num_top: int | None) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self._num_top = num_top
        self._texts: list[str] = []
        self._positions: list[Position] = []

    def add(self, output: CompletionOutput) -> None:
        check_not_aborted(output)
        if output.text:
            self._texts.append(output.text)
        if self._num_top is not None and output.logprobs is not None:
            self._positions += output.logprobs
        self.finish_reason = output.finish_reason

    def take_text(self) -> str:
        """The text that has come since the last call."""
        text = "".join(self._texts)
        self._texts.clear()
        return text

    def take_logprobs(self) -> dict[str, Any] | None:
        """The logprobs that have come since the last call; tokens without text of their own wait for the next text."""
        if self._num_top is None:
            return None
        content = [chat_logprob(position, self._num_top) for position in self._positions]
        self._positions.clear()
        return {"content": content, "refusal": None}

    @property
    def has_logprobs(self) -> bool:
        return bool(self._positions)


class CompletionChoice:
    """A choice of /v1/completions.

    Args:
        logprobs: None: no logprobs.
        echo: begin with the prompt.
        score_only: give nothing that was generated (`max_tokens` 0).
    """

    def __init__(self, index: int, logprobs: CompletionLogprobs | None, *, echo: str | None, score_only: bool) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self._logprobs = logprobs
        self._echo = echo
        self._score_only = score_only
        self._texts: list[str] = []
        self._shares: list[dict[str, Any]] = []
        self._waiting: tuple[list[int], list[Position]] = ([], [])

    def begin(self, output: RequestOutput) -> None:
        """Takes in the prompt, if it is to be echoed; with the request's first output."""
        if self._echo is None:
            return
        self._texts.append(self._echo)
        if self._logprobs is not None:
            positions = output.prompt_logprobs or [None] * len(output.prompt_token_ids)
            self._shares.append(self._logprobs.echoed(self._echo, output.prompt_token_ids, positions))

    def add(self, output: CompletionOutput) -> None:
        check_not_aborted(output)
        self.finish_reason = output.finish_reason
        if self._score_only:
            self.finish_reason = "length"
            return
        if output.text:
            self._texts.append(output.text)
        if self._logprobs is not None and output.logprobs is not None:
            self._waiting[0].extend(output.token_ids)
            self._waiting[1].extend(output.logprobs)

    @property
    def has_news(self) -> bool:
        return bool(self._texts) or self.finish_reason is not None

    def take(self) -> dict[str, Any]:
        """The choice as an answer shows it, with what has come since the last call."""
        text = "".join(self._texts)
        self._texts.clear()
        return {
            "index": self.index,
            "text": text,
            "logprobs": self._take_logprobs(),
            "finish_reason": self.finish_reason,
        }

    def _take_logprobs(self) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        shares = [*self._shares, self._logprobs.generated(*self._waiting)]
        self._shares.clear()
        self._waiting = ([], [])
        total = shares[0]
        for share in shares[1:]:
            total = joined(total, share)
        return total
