"""An engine with AsyncEngine's face and no model: one token a byte, and answers as scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.in_flight import RequestState
from octavo.engine.messages import CoreReady
from octavo.engine.recorder import RecordedStep
from octavo.errors import EngineOverloadedError, EngineStoppedError, RequestError
from octavo.observe.metrics import EngineMetrics
from octavo.outputs import CompletionOutput, Logprob, RequestOutput
from octavo.sampling_params import SamplingParams

BOS, EOS = 256, 257
VOCAB = 258


class ByteTokenizer:
    """Token ids 0 to 255 are bytes; two special tokens come after."""

    vocab_size = VOCAB
    has_chat_template = True

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if any(not 0 <= token_id < VOCAB for token_id in ids):
            raise RequestError(f"tokens: a token id is out of range, {VOCAB - 1} is the last", "tokens")
        data = b"".join(b"" if i > 255 and skip_special_tokens else self.token_bytes(i) for i in ids)
        return data.decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in (BOS, EOS)

    def token_bytes(self, token_id: int) -> bytes:
        return {BOS: b"<s>", EOS: b"</s>"}.get(token_id) or bytes([token_id])

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: dict[str, Any] | None = None,
    ) -> str:
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        if continue_final_message:
            text = text[:-1]
        return text + "".join(f"[{k}={v}]" for k, v in (template_kwargs or {}).items()) + "A:" * add_generation_prompt


@dataclass
class Status:
    state: str = "ready"
    reason: str = "ready"


@dataclass
class Call:
    """What `generate` was given."""

    prompt: dict[str, Any]
    params: SamplingParams
    request_id: str
    priority: int
    cache_salt: str | None
    timeout: float | None
    operation: str
    trace_headers: Mapping[str, str] | None


@dataclass
class FakeEngine:
    """Answers every request with `text`, byte by byte, bounded by max_tokens; `pause` seconds before each output.

    `error` is raised after `error_after` outputs. `aborted` has the ids of requests closed before their end, `given`
    the number of outputs taken.
    """

    text: str = "Hello!"
    pause: float = 0.0
    error: Exception | None = None
    error_after: int = 0
    overloaded: EngineOverloadedError | None = None
    steps: list[RecordedStep] = field(default_factory=list)
    in_flight: list[RequestState] = field(default_factory=list)
    state: Status = field(default_factory=Status)
    calls: list[Call] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    running: int = 0
    drained: float | None = None
    started: bool = False
    stopped: bool = False
    chunk: int = 1
    given: int = 0

    def __post_init__(self) -> None:
        self.config = EngineConfig(model="/models/org/tiny", served_model_name=["org/tiny", "tiny"])
        self.tokenizer: ByteTokenizer | None = ByteTokenizer()
        self.metrics = EngineMetrics("org/tiny")
        self.max_model_len = 64
        self.vocab_size = VOCAB
        self.info: CoreReady | None = CoreReady(8, 16, 64, VOCAB, "Fake", "float32", 1)

    def status(self) -> Status:
        return self.state

    def recent_steps(self, count: int) -> list[RecordedStep]:
        return self.steps[-count:]

    def requests(self) -> list[RequestState]:
        return self.in_flight

    def check_accepting(self) -> None:
        if self.overloaded is not None:
            raise self.overloaded

    async def start(self) -> None:
        self.started = True

    async def drain(self, deadline_seconds: float) -> None:
        self.drained = deadline_seconds

    async def shutdown(self) -> None:
        self.stopped = True

    def logprobs(self, token_id: int, count: int) -> dict[int, Logprob]:
        """The chosen token, second in rank, then the top ones: X is always the likeliest, Y the third, ..."""
        chosen = Logprob(-1.0, 2, self.tok.token_text(token_id), self.tok.token_bytes(token_id))
        found = {token_id: chosen}
        for rank, other in enumerate((ord("X"), token_id, ord("Y"), ord("Z"))[:count], start=1):
            if other not in found:
                value = float("-inf") if other == ord("Z") else -0.5 * rank
                found[other] = Logprob(value, rank, chr(other), bytes([other]))
        return found

    @property
    def tok(self) -> ByteTokenizer:
        return self.tokenizer or ByteTokenizer()

    async def generate(
        self,
        prompt: dict[str, Any],
        params: SamplingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        timeout: float | None = None,
        operation: str = "text_completion",
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        if self.state.state != "ready":
            raise EngineStoppedError(self.state.reason)
        ids = list(prompt["prompt_token_ids"])
        if len(ids) >= self.max_model_len:
            raise RequestError(f"the prompt has {len(ids)} tokens, too many", "prompt", "context_length_exceeded")
        if any(token_id >= VOCAB for token_id in ids):
            raise RequestError("token id in the prompt out of range", "prompt")
        assert request_id is not None
        self.calls.append(
            Call(dict(prompt), params, request_id, priority, cache_salt, timeout, operation, trace_headers)
        )
        self.running += 1
        finished = False
        try:
            for number, output in enumerate(self._outputs(ids, prompt, params, request_id)):
                if self.error is not None and number == self.error_after:
                    raise self.error
                await asyncio.sleep(self.pause)
                yield output
                self.given += 1
                finished = output.finished
        finally:
            self.running -= 1
            if not finished:
                self.aborted.append(request_id)

    def _outputs(
        self, ids: list[int], prompt: dict[str, Any], params: SamplingParams, request_id: str
    ) -> Iterator[RequestOutput]:
        room = min(params.max_tokens or self.max_model_len, self.max_model_len - len(ids))
        tokens = [*self.text.encode(), EOS][:room]
        reason = "stop" if tokens[-1:] == [EOS] else "length"
        pending = b""
        for start in range(0, len(tokens), self.chunk):
            news = tokens[start : start + self.chunk]
            last = start + self.chunk >= len(tokens)
            pending += bytes(token for token in news if token < 256)
            try:
                text, pending = pending.decode(), b""
            except UnicodeDecodeError:
                text = pending.decode(errors="replace") if last else ""
            yield RequestOutput(
                request_id,
                prompt.get("prompt"),
                ids,
                [
                    CompletionOutput(
                        index,
                        text,
                        list(news),
                        logprobs=None
                        if params.logprobs is None
                        else [self.logprobs(token, params.logprobs) for token in news],
                        finish_reason=reason if last else None,
                    )
                    for index in range(params.n)
                ],
                finished=last,
                prompt_logprobs=None
                if params.prompt_logprobs is None or start
                else [None, *(self.logprobs(token, params.prompt_logprobs) for token in ids[1:])],
                num_cached_tokens=min(3, len(ids)),
                num_output_tokens=params.n * (start + len(news)),
            )
