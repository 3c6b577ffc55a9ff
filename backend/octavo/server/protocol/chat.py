"""The request of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from octavo.server.protocol.generation import Count, GenerationRequest, StreamOptions
from octavo.server.protocol.wire import Wire, refusal

_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
_OTHER_PARTS = ("image_url", "input_audio", "file")
_OTHER_ROLES = ("tool", "function")


def _role(value: Any) -> Any:
    if value in _OTHER_ROLES:
        raise refusal(f"role '{value}' is not supported: octavo calls no tools", code="unsupported_value")
    return value


def _text(value: Any) -> Any:
    """Both forms of content as one text; parts are joined by line breaks."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError("a string, or an array of parts like {'type': 'text', 'text': '...'}")
    return "\n".join(_part_text(position, part) for position, part in enumerate(value))


def _part_text(position: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _OTHER_PARTS:
        raise refusal(f"part {position} is of type '{kind}', but this model takes text alone", code="unsupported_value")
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None or set(part) != {"type", field} or not isinstance(part[field], str):
        raise ValueError(f"part {position} must be {{'type': 'text', 'text': '...'}}")
    text: str = part[field]
    return text


class Message(Wire):
    """One message. What a client got from octavo can be sent back as it is, nulls and all."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "annotations": ([],),
        "audio": (),
        "function_call": (),
        "tool_calls": ([],),
    }

    role: Annotated[Literal["developer", "system", "user", "assistant"], BeforeValidator(_role)]
    content: Annotated[str | None, BeforeValidator(_text)] = None
    name: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and self.refusal is None:
            raise refusal(f"a message of the {self.role} needs it", "content", "missing_required_parameter")
        return self

    def for_template(self) -> dict[str, str]:
        """As chat templates know it: `developer` is OpenAI's newer word for `system`."""
        message = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content if self.content is not None else self.refusal or "",
        }
        if self.name is not None:
            message["name"] = self.name
        return message


def check_endings(add_generation_prompt: bool | None, continue_final_message: bool | None) -> None:
    """A prompt ends with the header of a new answer or in the middle of the last message, not both."""
    if add_generation_prompt and continue_final_message:
        raise refusal("excludes add_generation_prompt", "continue_final_message")


class ChatRequest(GenerationRequest):
    """`max_tokens` is the older name of `max_completion_tokens`."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "audio": (),
        "function_call": (),
        "functions": (),
        "modalities": (["text"],),
        "moderation": (),
        "prediction": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": ("in_memory",),
        "prompt_logprobs": (),
        "reasoning_effort": (),
        "response_format": ({"type": "text"},),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "tool_choice": (),
        "tools": (),
        "verbosity": ("medium",),
        "web_search_options": (),
    }
    nested: ClassVar[Mapping[str, type[Wire]]] = {"stream_options": StreamOptions, "messages": Message}

    messages: list[Message] = Field(min_length=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    max_tokens: Annotated[Count, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[Count, Field(ge=1)] | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
        ]
        | None
    ) = None
    parallel_tool_calls: bool = True
    prompt_cache_key: str | None = None
    safety_identifier: str | None = Field(None, max_length=128)

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise refusal("only taken with logprobs: true", "top_logprobs")
        if (
            self.max_tokens is not None
            and self.max_completion_tokens is not None
            and self.max_tokens != self.max_completion_tokens
        ):
            raise refusal(
                f"{self.max_tokens} is not max_completion_tokens ({self.max_completion_tokens}), the newer name of the "
                "same limit: send that alone",
                "max_tokens",
            )
        check_endings(self.add_generation_prompt, self.continue_final_message)
        return self

    @property
    def limit(self) -> int | None:
        """Tokens to generate at most; None: all the room left."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
