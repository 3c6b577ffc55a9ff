"""RequestAssembler: from the core's tokens to what a caller reads, for LLM and AsyncEngine alike."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.core.request import SequenceOutput
from octavo.core.step import TokenLogprobs
from octavo.engine.stop_strings import Stop, StopStrings
from octavo.outputs import CompletionOutput, FinishReason, Logprob, RequestMetrics, RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.text.tokenizer import Tokenizer

PositionLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class Update:
    """What one step brought to a request.

    Attributes:
        output: news for the caller, if there are any.
        stopped: indices ended by a stop string, which the core does not know of: the feeder aborts them there.
        error: the request failed alone, and `output` is None. The assembler does not count as finished: of n
            sequences others may still run, which the feeder aborts in the core.
    """

    output: RequestOutput | None = None
    stopped: list[int] = field(default_factory=list)
    error: str | None = None


class SequenceAssembler:
    """One of a request's n sequences: its tokens, its end, and, to give out whole, its text and logprobs.

    Args:
        delta: text and logprobs are given out as they come and not kept.
    """

    def __init__(self, index: int, params: SamplingParams, tokenizer: Tokenizer | None, *, delta: bool) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._params = params
        self._tokenizer = tokenizer
        self._delta = delta
        self._text: list[str] = []
        self._logprobs: list[PositionLogprobs] = []
        self._cumulative = 0.0
        self._stop_reason: str | int | None = None
        self._detokenizer = (
            tokenizer.detokenizer(skip_special_tokens=params.skip_special_tokens)
            if tokenizer is not None and params.detokenize
            else None
        )
        self._stops = StopStrings(params.stop, include=params.include_stop_str_in_output) if params.stop else None

    def feed(self, output: SequenceOutput) -> tuple[CompletionOutput, bool]:
        """(what this output adds, whether a stop string ended the sequence)."""
        before = len(self.token_ids)
        text, stopped = self._take_tokens(output)
        if not stopped and output.finish_reason is not None:
            self.finish_reason, self._stop_reason = output.finish_reason, output.stop_reason
            text += self._flush()
        taken = len(self.token_ids) - before
        positions = None
        if output.logprobs is not None:
            positions = [position_logprobs(one, self._tokenizer) for one in output.logprobs[:taken]]
            self._cumulative += sum(one.logprobs[0] for one in output.logprobs[:taken])
        if not self._delta:
            self._text.append(text)
            self._logprobs += positions or ()
        return self._completion(text, self.token_ids[before:], positions), stopped

    def whole(self) -> CompletionOutput:
        """All of it, from the beginning."""
        logprobs = self._logprobs if self._params.logprobs is not None else None
        return self._completion("".join(self._text), list(self.token_ids), logprobs)

    def _completion(self, text: str, token_ids: list[int], logprobs: list[PositionLogprobs] | None) -> CompletionOutput:
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=self._cumulative if self._params.logprobs is not None else None,
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )

    def _take_tokens(self, output: SequenceOutput) -> tuple[str, bool]:
        """Text of the tokens up to a stop string, which ends the sequence here."""
        text = ""
        last = len(output.token_ids) - 1
        for place, token_id in enumerate(output.token_ids):
            self.token_ids.append(token_id)
            if self._detokenizer is None:
                continue
            # The token that stopped it is no part of the text, unless that was asked for.
            if place == last and output.finish_reason == "stop" and not self._params.include_stop_str_in_output:
                continue
            more, stopped = self._scan(self._detokenizer.push([token_id]))
            text += more
            if stopped:
                return text, True
        return text, False

    def _scan(self, text: str) -> tuple[str, bool]:
        if self._stops is None:
            return text, False
        # As for end-of-sequence: the first min_tokens tokens cannot end the text, the one after them can.
        minimum = self._params.min_tokens
        found = self._stops.push(text, armed=minimum == 0 or len(self.token_ids) > minimum)
        if isinstance(found, Stop):
            self.finish_reason, self._stop_reason = "stop", found.string
            return found.text, True
        return found, False

    def _flush(self) -> str:
        """What was held back; a stop string may be completed by it, but the core has ended the sequence already."""
        if self._detokenizer is None:
            return ""
        text, stopped = self._scan(self._detokenizer.flush())
        if stopped or self._stops is None:
            return text
        return text + self._stops.flush()


class RequestAssembler:
    """One request's results, built up from the core's outputs.

    Args:
        prompt: its text, if known.
        delta: every RequestOutput carries only what is new; otherwise one comes, whole, when all sequences have ended.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        arrival_time: float,
        *,
        delta: bool,
    ) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._tokenizer = tokenizer
        self._delta = delta
        self._metrics = RequestMetrics(arrival_time)
        self._sequences = [SequenceAssembler(index, params, tokenizer, delta=delta) for index in range(params.n)]
        self._prompt_logprobs: list[PositionLogprobs | None] | None = (
            [None] if params.prompt_logprobs is not None else None
        )
        self._num_cached_tokens = 0
        self._is_first = True

    @property
    def metrics(self) -> RequestMetrics:
        """When what happened to the request."""
        return self._metrics

    @property
    def finished(self) -> bool:
        return all(sequence.finish_reason is not None for sequence in self._sequences)

    @property
    def finish_reasons(self) -> list[FinishReason]:
        """Of the sequences that have ended, by index."""
        return [one.finish_reason for one in self._sequences if one.finish_reason is not None]

    @property
    def num_output_tokens(self) -> int:
        return sum(len(sequence.token_ids) for sequence in self._sequences)

    def feed(self, outputs: list[SequenceOutput], now: float) -> Update:
        """Takes in one step's outputs for this request. Outputs of sequences that have ended are ignored."""
        update = Update()
        parts: dict[int, CompletionOutput] = {}
        for output in outputs:
            if output.error is not None:
                update.error = output.error
                return update
            self._note(output, now)
            sequence = self._sequences[output.index]
            if sequence.finish_reason is not None or not (output.token_ids or output.finish_reason):
                continue
            parts[output.index], stopped = sequence.feed(output)
            if stopped and output.finish_reason is None:
                update.stopped.append(output.index)
        if not parts:
            return update
        finished = self.finished
        if finished:
            self._metrics.finished_time = now
        if self._delta:
            update.output = self._request_output(list(parts.values()), finished, with_prompt=self._is_first)
            self._is_first = False
        elif finished:
            whole = [sequence.whole() for sequence in self._sequences]
            update.output = self._request_output(whole, finished, with_prompt=True)
        return update

    def abort_outputs(self) -> list[SequenceOutput]:
        """What the core would say if it aborted every sequence that has not ended."""
        return [
            SequenceOutput(self._request_id, one.index, [], finish_reason="abort")
            for one in self._sequences
            if one.finish_reason is None
        ]

    def unfinished(self) -> list[tuple[int, list[int]]]:
        """(index, tokens so far) of every sequence that has not ended."""
        return [(one.index, list(one.token_ids)) for one in self._sequences if one.finish_reason is None]

    def forget_prompt_logprobs(self) -> None:
        """They will come again, from the first on: the request begins anew."""
        if self._prompt_logprobs is not None:
            self._prompt_logprobs = [None]

    def _note(self, output: SequenceOutput, now: float) -> None:
        metrics = self._metrics
        if metrics.first_scheduled_time is None:
            metrics.first_scheduled_time = output.first_scheduled_time
        if output.token_ids:
            metrics.last_token_time = now
            if metrics.first_token_time is None:
                metrics.first_token_time = now
                self._num_cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs and self._prompt_logprobs is not None:
            self._prompt_logprobs += [position_logprobs(one, self._tokenizer) for one in output.prompt_logprobs]

    def _request_output(self, outputs: list[CompletionOutput], finished: bool, *, with_prompt: bool) -> RequestOutput:
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=outputs,
            finished=finished,
            prompt_logprobs=self._prompt_logprobs if with_prompt else None,
            num_cached_tokens=self._num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            metrics=self._metrics,
        )


def position_logprobs(given: TokenLogprobs, tokenizer: Tokenizer | None) -> PositionLogprobs:
    """Token id -> Logprob: the chosen token first, then the top ones by rank."""
    found: PositionLogprobs = {}
    for place, (token_id, value) in enumerate(zip(given.token_ids, given.logprobs, strict=True)):
        if token_id in found:
            continue
        text = tokenizer.token_text(token_id) if tokenizer is not None else None
        exact = tokenizer.token_bytes(token_id) if tokenizer is not None else None
        found[token_id] = Logprob(value, given.rank if place == 0 else place, text, exact)
    return found
