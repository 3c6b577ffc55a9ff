"""What /v1/completions and /v1/chat/completions have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from octavo.errors import RequestError
from octavo.sampling_params import SamplingParams, TokenId
from octavo.server.protocol.wire import Wire, refusal

MAX_STOP_STRINGS = 4
MAX_ENTRIES = 1024
"""Of logit_bias, stop_token_ids and bad_words: each costs work in every step."""
_TINY_TOP_P = 1e-9
"""Stands for top_p 0, which OpenAI's range includes: the likeliest token alone."""

Count = Annotated[int, Field(ge=0, lt=2**31)]


def _stop_list(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        if len(value) > MAX_STOP_STRINGS:
            raise ValueError(f"at most {MAX_STOP_STRINGS} strings")
        return value
    raise ValueError("a string or an array of strings")


def _token_keys(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_ENTRIES:
        raise ValueError(f"at most {MAX_ENTRIES} entries")
    if not isinstance(value, dict):
        raise ValueError("an object from token ids to numbers from -100 to 100")
    biases: dict[int, Any] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise ValueError(f"'{key[:40]}' is not a token id")
        biases[int(key)] = bias
    return biases


class StreamOptions(Wire):
    """Only with `stream`."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}

    include_usage: bool | None = None


class GenerationRequest(Wire):
    """Fields, nullables and ranges as in OpenAI's API reference, then octavo's extra ones under vLLM's names."""

    nested: ClassVar[Mapping[str, type[Wire]]] = {"stream_options": StreamOptions}

    model: str = Field(min_length=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Annotated[
        dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None,
        BeforeValidator(lambda value: value if value is None else _token_keys(value)),
    ] = None
    n: int | None = Field(None, ge=1, le=128)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[str] | None, BeforeValidator(lambda value: value if value is None else _stop_list(value))] = (
        None
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    user: str = ""
    """For OpenAI's abuse monitoring; nothing here needs it."""

    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0)
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    stop_token_ids: list[TokenId] | None = Field(None, max_length=MAX_ENTRIES)
    bad_words: list[str] | None = Field(None, max_length=MAX_ENTRIES)
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    timeout: float | None = Field(None, gt=0)
    """Seconds the request may take, waiting included."""

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise refusal("only taken with stream: true", "stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling_params(self, max_tokens: int | None, **more: Any) -> SamplingParams:
        """The request's SamplingParams; what is null or left out keeps its default. Raises RequestError."""
        if max_tokens is not None and (self.min_tokens or 0) > max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) is above the most tokens to generate ({max_tokens})",
                "min_tokens",
                "invalid_value",
            )
        given = {name: getattr(self, name) for name in _PASSED_ON if getattr(self, name) is not None}
        if self.top_p == 0:
            given["top_p"] = _TINY_TOP_P
        return SamplingParams(**given, max_tokens=max_tokens, **more)


_PASSED_ON = (
    "frequency_penalty",
    "logit_bias",
    "n",
    "presence_penalty",
    "seed",
    "stop",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "ignore_eos",
    "min_tokens",
    "stop_token_ids",
    "bad_words",
    "include_stop_str_in_output",
    "skip_special_tokens",
)
