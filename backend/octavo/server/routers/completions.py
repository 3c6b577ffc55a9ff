"""/v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from octavo.errors import RequestError
from octavo.server import sse
from octavo.server.answer import DocumentAnswer, StreamAnswer
from octavo.server.body import read_json
from octavo.server.choice import CompletionChoice
from octavo.server.context import Context, Options
from octavo.server.logprobs import CompletionLogprobs
from octavo.server.merge import merged
from octavo.server.prompts import EncodedPrompt, encode_texts
from octavo.server.protocol.completions import CompletionRequest
from octavo.server.protocol.openapi import json_body
from octavo.server.usage import Usage

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer


def router(context: Context) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions", openapi_extra=json_body(CompletionRequest))
    async def create_completion(request: Request) -> Response:
        """Continues each prompt. OpenAI's API; extra fields under vLLM's names."""
        asked = CompletionRequest.parse(await read_json(request, context.config.max_request_bytes))
        context.check_model(asked.model)
        context.check_accepting()
        answer = await _prepare(context, asked, context.options(request, asked))
        return StreamAnswer(answer.events()) if asked.stream else DocumentAnswer(answer.document)

    return routes


async def _prepare(context: Context, asked: CompletionRequest, options: Options) -> _Completion:
    num_choices = len(asked.prompts) * (asked.n or 1)
    if num_choices > context.config.max_choices:
        raise RequestError(
            f"prompts x n is {num_choices}, above the {context.config.max_choices} choices one request may have "
            "(max_choices)",
            "prompt",
            "invalid_value",
        )
    prompts = await _encoded(context, asked)
    if asked.max_tokens is not None:
        for prompt in prompts:
            _check_room(len(prompt.token_ids), asked.max_tokens, context.engine.max_model_len)
    return _Completion(context, asked, prompts, options)


async def _encoded(context: Context, asked: CompletionRequest) -> list[EncodedPrompt]:
    texts = [prompt for prompt in asked.prompts if isinstance(prompt, str)]
    if texts:
        with_special = asked.add_special_tokens is not False
        return await encode_texts(context.engine, texts, add_special_tokens=with_special)
    return [EncodedPrompt(prompt) for prompt in asked.prompts if isinstance(prompt, list)]


def _check_room(num_prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
    """OpenAI's reference: prompt plus an explicit `max_tokens` cannot exceed the context."""
    if num_prompt_tokens < max_model_len < num_prompt_tokens + max_tokens:
        raise RequestError(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}: together "
            f"{num_prompt_tokens + max_tokens}, above this model's context of {max_model_len} tokens",
            "max_tokens",
            "context_length_exceeded",
        )


def _shown(tokenizer: Tokenizer, token_ids: list[int], skip_special_tokens: bool) -> str:
    try:
        return tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
    except RequestError as error:
        raise RequestError(error.message, "prompt", error.code) from None


class _Completion:
    """One request under way."""

    def __init__(
        self, context: Context, asked: CompletionRequest, prompts: list[EncodedPrompt], options: Options
    ) -> None:
        self._asked = asked
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._usage = Usage()
        self._frame: dict[str, Any] = {
            "id": self._id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": context.model_name,
            "system_fingerprint": context.fingerprint,
        }
        self._n = asked.n or 1
        self._choices = [
            [self._choice(context, index * self._n + number, prompt) for number in range(self._n)]
            for index, prompt in enumerate(prompts)
        ]
        params = asked.sampling_params(
            max(asked.limit, 1),
            logprobs=asked.logprobs,
            prompt_logprobs=asked.logprobs if asked.echo else None,
            detokenize=context.engine.tokenizer is not None,
        )
        self._streams = [
            context.engine.generate(
                prompt.for_engine(),
                params,
                f"{self._id}-{index}",
                operation="text_completion",
                **options,
            )
            for index, prompt in enumerate(prompts)
        ]

    def _choice(self, context: Context, index: int, prompt: EncodedPrompt) -> CompletionChoice:
        tokenizer = context.engine.tokenizer
        skip_special = self._asked.skip_special_tokens is not False
        logprobs = None
        if self._asked.logprobs is not None:
            logprobs = CompletionLogprobs(self._asked.logprobs, tokenizer, skip_special)
        echo = prompt.text if self._asked.echo else None
        if self._asked.echo and echo is None:
            echo = _shown(tokenizer, prompt.token_ids, skip_special) if tokenizer is not None else ""
        return CompletionChoice(index, logprobs, echo=echo, score_only=self._asked.limit == 0)

    async def document(self) -> dict[str, Any]:
        async with aclosing(self._fed()) as fed:
            async for _ in fed:
                pass
        choices = [choice.take() for group in self._choices for choice in group]
        return {**self._frame, "choices": choices, "usage": self._usage.as_dict()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        with_usage = {"usage": None} if self._asked.include_usage else {}
        async with aclosing(self._fed()) as fed:
            async for news in fed:
                ready = [choice for choice in news if choice.has_news]
                if ready:
                    yield b"".join(
                        sse.event({**self._frame, "choices": [choice.take()], **with_usage}) for choice in ready
                    )
        if self._asked.include_usage:
            yield sse.event({**self._frame, "choices": [], "usage": self._usage.as_dict()})
        yield sse.DONE

    async def _fed(self) -> AsyncGenerator[list[CompletionChoice], None]:
        """The choices with something new, each time there is some."""
        begun: set[int] = set()
        async with aclosing(merged(self._streams)) as outputs:
            async for index, output in outputs:
                self._usage.update(index, output, nothing_generated=self._asked.limit == 0)
                group = self._choices[index]
                if index not in begun:
                    begun.add(index)
                    for choice in group:
                        choice.begin(output)
                for part in output.outputs:
                    group[part.index].add(part)
                yield [group[part.index] for part in output.outputs]
