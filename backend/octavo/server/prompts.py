"""From what a request carries to token ids."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError
from octavo.server.protocol.chat import Message

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine
    from octavo.engine.intake import TokensPrompt
    from octavo.text.tokenizer import Tokenizer

# So much text takes milliseconds: off the event loop with it.
_LONG_TEXT = 20_000
# What a message of its own costs a template, as characters.
_MESSAGE_LENGTH = 100
_RESERVED_VARIABLES = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "messages", "tools"}
)


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt ready for the engine, and the text it came from where there is one."""

    token_ids: list[int]
    text: str | None = None

    def for_engine(self) -> TokensPrompt:
        return {"prompt_token_ids": self.token_ids, "prompt": self.text}


def require_tokenizer(engine: AsyncEngine, param: str) -> Tokenizer:
    """Raises RequestError for a model served without one."""
    if engine.tokenizer is None:
        raise RequestError("this model is served without a tokenizer: send token ids", param)
    return engine.tokenizer


async def encode_texts(
    engine: AsyncEngine, texts: Sequence[str], *, add_special_tokens: bool = True
) -> list[EncodedPrompt]:
    """Raises RequestError for an empty text, and where there is no tokenizer."""
    if not all(texts):
        raise RequestError("the prompt is empty: it must have at least one token", "prompt", "invalid_value")
    tokenizer = require_tokenizer(engine, "prompt")

    def encode() -> list[EncodedPrompt]:
        return [EncodedPrompt(tokenizer.encode(text, add_special_tokens=add_special_tokens), text) for text in texts]

    if sum(map(len, texts)) > _LONG_TEXT:
        return await asyncio.to_thread(encode)
    return encode()


async def encode_chat(
    engine: AsyncEngine,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    add_special_tokens: bool = False,
) -> EncodedPrompt:
    """The conversation as the model's chat template writes it.

    Raises:
        RequestError: there is no template, or the template refuses the messages.
    """
    tokenizer = require_tokenizer(engine, "messages")
    if not tokenizer.has_chat_template:
        raise RequestError(
            "this model has no chat template: use /v1/completions, or serve it with --chat-template", "messages"
        )
    for name in template_kwargs or ():
        if name in _RESERVED_VARIABLES:
            raise RequestError(
                f"chat_template_kwargs: '{name}' is not a variable to set here", "chat_template_kwargs", "invalid_value"
            )
    continued = bool(continue_final_message)
    render = functools.partial(
        tokenizer.render_chat,
        [message.for_template() for message in messages],
        add_generation_prompt=not continued if add_generation_prompt is None else add_generation_prompt,
        continue_final_message=continued,
        template_kwargs=dict(template_kwargs or {}),
    )
    length = sum(len(message.content or "") for message in messages) + _MESSAGE_LENGTH * len(messages)
    text = await asyncio.to_thread(render) if length > _LONG_TEXT else render()
    (encoded,) = await encode_texts(engine, [text], add_special_tokens=add_special_tokens)
    return encoded
