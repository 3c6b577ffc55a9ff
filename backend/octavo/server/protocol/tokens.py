"""The requests of /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from octavo.sampling_params import TokenId
from octavo.server.protocol.chat import Message, check_endings
from octavo.server.protocol.wire import Wire, refusal


class TokenizeRequest(Wire):
    """A `prompt`, or `messages` to render first. `add_special_tokens` is true for the one, false for the other."""

    nested: ClassVar[Mapping[str, type[Wire]]] = {"messages": Message}

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise refusal("give either prompt or messages", "prompt")
        check_endings(self.add_generation_prompt, self.continue_final_message)
        return self


class DetokenizeRequest(Wire):
    """Token ids to turn into text, special tokens shown."""

    model: str | None = None
    tokens: list[TokenId]
