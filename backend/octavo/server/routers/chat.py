"""/v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from octavo.errors import RequestError
from octavo.server import sse
from octavo.server.answer import DocumentAnswer, StreamAnswer
from octavo.server.body import read_json
from octavo.server.choice import ChatChoice
from octavo.server.context import Context, Options
from octavo.server.prompts import EncodedPrompt, encode_chat
from octavo.server.protocol.chat import ChatRequest
from octavo.server.protocol.openapi import json_body
from octavo.server.usage import Usage


def router(context: Context) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", openapi_extra=json_body(ChatRequest))
    async def create_chat_completion(request: Request) -> Response:
        """Answers a conversation. OpenAI's API; extra fields under vLLM's names."""
        asked = ChatRequest.parse(await read_json(request, context.config.max_request_bytes))
        context.check_model(asked.model)
        context.check_messages(len(asked.messages))
        context.check_accepting()
        prompt = await encode_chat(
            context.engine,
            asked.messages,
            add_generation_prompt=asked.add_generation_prompt,
            continue_final_message=asked.continue_final_message,
            template_kwargs=asked.chat_template_kwargs,
        )
        answer = _ChatCompletion(context, asked, prompt, context.options(request, asked))
        return StreamAnswer(answer.events()) if asked.stream else DocumentAnswer(answer.document)

    return routes


class _ChatCompletion:
    """One request under way."""

    def __init__(self, context: Context, asked: ChatRequest, prompt: EncodedPrompt, options: Options) -> None:
        self._asked = asked
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._usage = Usage()
        self._frame: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion.chunk" if asked.stream else "chat.completion",
            "created": int(time.time()),
            "model": context.model_name,
            "system_fingerprint": context.fingerprint,
        }
        self._tail: dict[str, Any] = {"usage": None} if asked.include_usage else {}
        num_top = (asked.top_logprobs or 0) if asked.logprobs else None
        self._choices = [ChatChoice(index, num_top) for index in range(asked.n or 1)]
        params = asked.sampling_params(asked.limit, logprobs=num_top, detokenize=context.engine.tokenizer is not None)
        self._outputs = context.engine.generate(prompt.for_engine(), params, self._id, operation="chat", **options)

    async def document(self) -> dict[str, Any]:
        async with aclosing(self._fed()) as fed:
            async for _ in fed:
                pass
        choices = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.take_text(), "refusal": None},
                "logprobs": choice.take_logprobs(),
                "finish_reason": choice.finish_reason,
            }
            for choice in self._choices
        ]
        return {**self._frame, "choices": choices, "usage": self._usage.as_dict()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        first = True
        async with aclosing(self._fed()) as fed:
            async for news in fed:
                events = [self._role_event(choice) for choice in self._choices] if first else []
                first = False
                for choice in news:
                    events += self._news_events(choice)
                if events:
                    yield b"".join(events)
        if self._asked.include_usage:
            yield sse.event({**self._frame, "choices": [], "usage": self._usage.as_dict()})
        yield sse.DONE

    def _news_events(self, choice: ChatChoice) -> list[bytes]:
        """The text that has come, and the end in an event of its own; logprobs with the first of the two."""
        events = []
        if text := choice.take_text():
            events.append(self._event(choice, {"content": text}, choice.take_logprobs(), None))
        if choice.finish_reason is not None:
            logprobs = choice.take_logprobs() if choice.has_logprobs else None
            events.append(self._event(choice, {}, logprobs, choice.finish_reason))
        return events

    def _role_event(self, choice: ChatChoice) -> bytes:
        return self._event(choice, {"role": "assistant", "content": "", "refusal": None}, None, None)

    def _event(
        self, choice: ChatChoice, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish_reason: str | None
    ) -> bytes:
        part = {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return sse.event({**self._frame, "choices": [part], **self._tail})

    async def _fed(self) -> AsyncGenerator[list[ChatChoice], None]:
        """The choices with something new, each time there is some."""
        async with aclosing(self._outputs) as outputs:
            try:
                async for output in outputs:
                    self._usage.update(0, output)
                    for part in output.outputs:
                        self._choices[part.index].add(part)
                    yield [self._choices[part.index] for part in output.outputs]
            except RequestError as error:
                # The engine knows a prompt; this client sent messages.
                if error.param == "prompt":
                    raise RequestError(error.message, "messages", error.code) from None
                raise
