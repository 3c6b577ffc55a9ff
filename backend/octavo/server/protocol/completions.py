"""The request of /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from octavo.server.protocol.generation import Count, GenerationRequest
from octavo.server.protocol.wire import refusal

DEFAULT_MAX_TOKENS = 16

Prompts = list[str] | list[list[int]]


def _prompt_list(value: Any) -> Any:
    """Any of the four forms as a list of texts or a list of token id lists."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value
        if _token_ids(value):
            return [value]
        if all(isinstance(item, list) and item and _token_ids(item) for item in value):
            return value
    raise ValueError("a string, or an array of strings, of token ids, or of arrays of token ids, none of them empty")


def _token_ids(items: list[Any]) -> bool:
    return all(type(item) is int for item in items)


class CompletionRequest(GenerationRequest):
    """`max_tokens` may be 0, as in OpenAI's reference: nothing is generated, which with `echo` scores the prompt."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {"suffix": ("",), "prompt_logprobs": ()}

    prompt: Annotated[Any, BeforeValidator(_prompt_list)]
    best_of: int | None = Field(None, ge=0, le=20)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=5)
    max_tokens: Count | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _no_best_of(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise refusal(
                f"not supported unless it equals n ({self.n or 1}), got {self.best_of}",
                "best_of",
                "unsupported_value",
            )
        return self

    @property
    def prompts(self) -> Prompts:
        found: Prompts = self.prompt
        return found

    @property
    def limit(self) -> int:
        """Tokens to generate at most."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
