"""An AsyncEngine without a model: it says the prompt's words one by one, and fails as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from octavo.errors import EngineDeadError, RequestError
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.sampling_params import SamplingParams


class FakeTokenizer:
    """One token a word."""

    def render_chat(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
        if any("content" not in message for message in messages):
            raise RequestError("a message needs content", "messages")
        return " ".join(f"{message['role']}:{message['content']}" for message in messages)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [len(word) for word in text.split()]


class FakeEngine:
    """A prompt of "refuse" is refused, "die" kills the engine, "slow" takes a while, "hang" never ends."""

    last: ClassVar[FakeEngine]

    def __init__(self, config: Any) -> None:
        self.config = config
        self.tokenizer = FakeTokenizer()
        self.started = self.stopped = False
        self.running = self.most_at_once = 0
        self.aborted = 0
        FakeEngine.last = self

    async def start(self) -> None:
        self.started = True

    async def shutdown(self) -> None:
        self.stopped = True

    async def generate(self, prompt: Any, params: SamplingParams) -> AsyncIterator[RequestOutput]:
        text = prompt if isinstance(prompt, str) else prompt.get("prompt")
        ids = [1, 2, 3] if isinstance(prompt, str) else prompt.get("prompt_token_ids", [1, 2, 3])
        if text == "refuse":
            raise RequestError("the prompt is refused", "prompt", "context_length_exceeded")
        if text == "die":
            raise EngineDeadError("the engine core is gone")
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        finished = False
        try:
            words = (text or "ids").split(" ")
            for count, word in enumerate(words, 1):
                await asyncio.sleep(0.02 if text == "slow" else 0)
                finished = count == len(words) and "hang" not in words
                yield RequestOutput(
                    request_id="r",
                    prompt=text,
                    prompt_token_ids=ids,
                    outputs=[CompletionOutput(0, word + " ", [count], finish_reason="stop" if finished else None)],
                    finished=finished,
                    num_output_tokens=count,
                )
            if not finished:
                await asyncio.Event().wait()
        finally:
            self.running -= 1
            self.aborted += not finished
