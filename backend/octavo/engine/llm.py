"""LLM: the offline batch API. The engine runs in this process; there is no other."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from octavo.config import EngineConfig
from octavo.core.request import SequenceOutput
from octavo.engine.intake import Admitted, Intake, Prompt
from octavo.engine.loop import EngineLoop, LoopStats
from octavo.engine.output import RequestAssembler
from octavo.errors import ConfigError, RequestError
from octavo.execution.executor import ExecutorInfo
from octavo.model.loading.source import resolve_model
from octavo.observe.logs import setup_logging
from octavo.outputs import RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.text.tokenizer import Tokenizer

Message = dict[str, Any]


class LLM:
    """A model and its engine, for batches of prompts.

    Args:
        model: local directory, GGUF file, hub id, or `pkg://package/file`.
        knobs: any other EngineConfig field.

    Raises:
        ConfigError: (a ValueError) an unknown option, a bad value, or a model that cannot be served.
    """

    def __init__(self, model: str, **knobs: Any) -> None:
        self.config = EngineConfig.from_sources({"model": model, **knobs})
        setup_logging(self.config.log_level, log_format=self.config.log_format)
        self._tokenizer = self._load_tokenizer()
        self._loop = EngineLoop.build(self.config)
        info = self._loop.info
        self._intake = Intake(
            self.config, self._tokenizer, vocab_size=info.vocab_size, max_model_len=info.max_model_len
        )
        self._next_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    @property
    def info(self) -> ExecutorInfo:
        """What was loaded and how the cache was sized."""
        return self._loop.info

    @property
    def stats(self) -> LoopStats:
        """Sums over the steps since the start or `reset_stats`."""
        return self._loop.stats

    def reset_stats(self) -> None:
        self._loop.reset_stats()

    def get_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ConfigError("this LLM has no tokenizer (skip_tokenizer_init)", "skip_tokenizer_init")
        return self._tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Completes the prompts; results come in the prompts' order.

        Args:
            prompts: one or many: text, `{"prompt": text}`, or `{"prompt_token_ids": [...]}`.
            sampling_params: one for all, or one a prompt. Default: SamplingParams().
            use_tqdm: show a progress bar with tokens per second.
            priority: one a prompt, lowest first (scheduling_policy="priority").

        Raises:
            RequestError: (a ValueError) a prompt or its parameters are wrong; nothing has run then.
        """
        listed = _prompt_list(prompts)
        params = _params_list(sampling_params, len(listed))
        priorities = _priority_list(priority, len(listed))
        now = time.monotonic()
        admitted = []
        for position, (prompt, one, rank) in enumerate(zip(listed, params, priorities, strict=True)):
            try:
                admitted.append(self._intake.admit(prompt, one, self._new_id(), arrival_time=now, priority=rank))
            except RequestError as error:
                raise _at(error, position, len(listed)) from None
        return self._run(admitted, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or many, through the model's chat template; otherwise as `generate`."""
        tokenizer = self.get_tokenizer()
        prompts: list[Prompt] = []
        for conversation in _conversations(messages):
            text = tokenizer.render_chat(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs=chat_template_kwargs,
            )
            # The template has written the special tokens already.
            prompts.append({"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)})
        return self.generate(prompts, sampling_params, use_tqdm)

    def shutdown(self) -> None:
        """Frees the engine's memory; the LLM is of no use after it."""
        self._loop.shutdown()

    def _load_tokenizer(self) -> Tokenizer | None:
        if self.config.skip_tokenizer_init:
            return None
        source = resolve_model(self.config.tokenizer or self.config.model, self.config.revision)
        return Tokenizer.load(
            source, trust_remote_code=self.config.trust_remote_code, chat_template=self.config.chat_template
        )

    def _new_id(self) -> str:
        self._next_id += 1
        return str(self._next_id - 1)

    def _run(self, admitted: list[Admitted], use_tqdm: bool) -> list[RequestOutput]:
        assemblers: dict[str, RequestAssembler] = {}
        results: dict[str, RequestOutput] = {}
        try:
            for position, request in enumerate(admitted):
                message = request.message
                try:
                    self._loop.add(message)
                except RequestError as error:
                    raise _at(error, position, len(admitted)) from None
                assemblers[message.request_id] = RequestAssembler(
                    message.request_id,
                    request.prompt,
                    message.prompt_token_ids,
                    message.params,
                    self._tokenizer,
                    message.arrival_time,
                    delta=False,
                )
            with _Progress(len(admitted), use_tqdm) as progress:
                while self._loop.has_work():
                    self._take(self._loop.step(), assemblers, results, progress)
        finally:
            # Also on an error and on Ctrl-C: whatever still runs is freed.
            for request_id in assemblers.keys() - results.keys():
                self._loop.abort(request_id)
        return [results[request.message.request_id] for request in admitted]

    def _take(
        self,
        outputs: Iterable[SequenceOutput],
        assemblers: dict[str, RequestAssembler],
        results: dict[str, RequestOutput],
        progress: _Progress,
    ) -> None:
        now = time.monotonic()
        by_request: dict[str, list[SequenceOutput]] = {}
        for output in outputs:
            by_request.setdefault(output.request_id, []).append(output)
        for request_id, news in by_request.items():
            update = assemblers[request_id].feed(news, now)
            for index in update.stopped:
                self._loop.abort(request_id, index)
            if update.error is not None:
                raise RequestError(f"request {request_id}: {update.error}")
            progress.tokens(sum(len(output.token_ids) for output in news))
            if update.output is not None and update.output.finished:
                results[request_id] = update.output
                progress.finished()


class _Progress:
    """A bar that counts requests and shows output tokens per second."""

    def __init__(self, total: int, shown: bool) -> None:
        # In a log file every refresh is a line: few of them there.
        interval = 0.2 if sys.stderr.isatty() else 10.0
        self._bar = tqdm(
            total=total,
            desc="Processed prompts",
            unit="req",
            disable=not shown,
            dynamic_ncols=True,
            mininterval=interval,
        )
        self._tokens = 0
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def tokens(self, count: int) -> None:
        self._tokens += count
        if not self._bar.disable:
            rate = self._tokens / max(time.monotonic() - self._start, 1e-9)
            self._bar.set_postfix_str(f"{rate:.1f} output tok/s", refresh=False)
            self._bar.update(0)

    def finished(self) -> None:
        self._bar.update(1)


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | dict):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise RequestError(f"prompts must be a prompt or a list of prompts, not {type(prompts).__name__}", "prompts")
    if prompts and all(type(item) is int for item in prompts):
        return [list(prompts)]  # type: ignore[arg-type]  # just seen to be ints
    return list(prompts)  # type: ignore[arg-type]  # each is checked by the intake


def _params_list(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise RequestError(
            f"{count} prompts but {len(params)} sampling params: give one, or one a prompt", "sampling_params"
        )
    return list(params)


def _priority_list(priority: Sequence[int] | None, count: int) -> list[int]:
    if priority is None:
        return [0] * count
    if len(priority) != count:
        raise RequestError(f"{count} prompts but {len(priority)} priorities: give one a prompt", "priority")
    return list(priority)


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[list[Message]]:
    if not messages:
        raise RequestError("messages is empty: a conversation has at least one message", "messages")
    if isinstance(messages[0], dict):
        return [list(messages)]  # type: ignore[arg-type]  # a single conversation
    return [list(conversation) for conversation in messages]  # type: ignore[arg-type]


def _at(error: RequestError, position: int, count: int) -> RequestError:
    """The same error, saying which of many prompts it is about."""
    if count == 1:
        return error
    return RequestError(f"prompt {position}: {error.message}", error.param, error.code)
