"""One request's way back to its caller: joins what has come until the caller takes it."""

from __future__ import annotations

import asyncio

from octavo.outputs import CompletionOutput, RequestOutput


class OutputStream:
    """Holds at most one pending RequestOutput: a caller that reads slowly finds later deltas joined to earlier ones,
    so it delays nobody and its buffer is bounded by its own text.

    All methods belong to the event loop's thread.
    """

    def __init__(self) -> None:
        self._pending: RequestOutput | None = None
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        if self._pending is None:
            self._pending = output
        else:
            join(self._pending, output)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """What is pending is still delivered; then `get` raises `error`."""
        if self._error is None:
            self._error = error
        self._news.set()

    async def get(self) -> RequestOutput:
        """Waits for news. Raises what `fail` was given."""
        await self._news.wait()
        self._news.clear()
        if self._pending is not None:
            output, self._pending = self._pending, None
            if self._error is not None:
                self._news.set()
            return output
        if self._error is None:
            raise RuntimeError("woken without news")
        raise self._error


def join(earlier: RequestOutput, later: RequestOutput) -> None:
    """Adds the deltas of `later` to `earlier`."""
    by_index = {output.index: output for output in earlier.outputs}
    for output in later.outputs:
        if output.index in by_index:
            _join_sequence(by_index[output.index], output)
        else:
            earlier.outputs.append(output)
    earlier.finished = later.finished
    earlier.num_output_tokens = later.num_output_tokens
    earlier.metrics = later.metrics
    if earlier.prompt_logprobs is None:
        earlier.prompt_logprobs = later.prompt_logprobs


def _join_sequence(earlier: CompletionOutput, later: CompletionOutput) -> None:
    earlier.text += later.text
    earlier.token_ids = earlier.token_ids + later.token_ids
    if later.logprobs is not None:
        earlier.logprobs = (earlier.logprobs or []) + later.logprobs
    earlier.cumulative_logprob = later.cumulative_logprob
    earlier.finish_reason = later.finish_reason
    earlier.stop_reason = later.stop_reason
