"""SamplingParams: how one request's tokens are chosen and when it ends. vLLM's spelling throughout."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from octavo.errors import RequestError
from octavo.validation import Knobs

MAX_LOGPROBS = 100
MAX_STOP_LENGTH = 4096
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class SamplingParams(Knobs):
    """Validated, immutable sampling options.

    Raises:
        RequestError: (a ValueError) an unknown name, a wrong type, or a value out of range.
    """

    error: ClassVar = RequestError
    noun: ClassVar[str] = "sampling parameter"

    n: int = Field(1, ge=1, le=128, description="Sequences to generate from the prompt.")
    temperature: float = Field(1.0, ge=0, description="0 is greedy; the logits are divided by it otherwise.")
    top_k: int = Field(0, ge=-1, description="Keep the k likeliest tokens; 0 or -1 keeps all.")
    top_p: float = Field(1.0, gt=0, le=1, description="Keep the smallest set of tokens of at least this mass.")
    min_p: float = Field(0.0, ge=0, le=1, description="Drop tokens below this share of the likeliest one.")
    repetition_penalty: float = Field(1.0, gt=0, description="Above 1 discourages tokens of prompt and output.")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="Taken off the logit of every token generated.")
    frequency_penalty: float = Field(
        0.0, ge=-2, le=2, description="Taken off a token's logit for each time it was generated."
    )
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, description="Token id -> what is added to its logit."
    )
    seed: int | None = Field(
        None, ge=-(2**63), lt=2**63, description="Fixes the draws: the same request gives the same tokens."
    )
    stop: list[str] = Field(default_factory=list, description="Strings that end the text; a single one may be given.")
    stop_token_ids: list[TokenId] = Field(default_factory=list, description="Tokens that end the text.")
    bad_words: list[str] = Field(default_factory=list, description="Strings that are never generated.")
    min_tokens: int = Field(0, ge=0, description="No end-of-sequence, stop token or stop string before this many.")
    max_tokens: int | None = Field(None, ge=1, description="None: all the room left in the context.")
    ignore_eos: bool = Field(False, description="Go on past the end-of-sequence token.")
    include_stop_str_in_output: bool = Field(False, description="Keep what ended the text at its end.")
    skip_special_tokens: bool = Field(True, description="Leave special tokens out of the text.")
    detokenize: bool = Field(True, description="False: token ids only, no text.")
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="Top logprobs for each output token.")
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="Top logprobs for each prompt token.")

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if value is None:
            return []
        return [value] if isinstance(value, str) else value

    @field_validator("stop_token_ids", "bad_words", mode="before")
    @classmethod
    def _none_is_empty(cls, value: Any) -> Any:
        return [] if value is None else value

    @field_validator("stop")
    @classmethod
    def _stop_strings(cls, value: list[str]) -> list[str]:
        if any(not text for text in value):
            raise ValueError("a stop string cannot be empty")
        if any(len(text) > MAX_STOP_LENGTH for text in value):
            raise ValueError(f"a stop string can have at most {MAX_STOP_LENGTH} characters")
        return value

    @field_validator("bad_words")
    @classmethod
    def _bad_words(cls, value: list[str]) -> list[str]:
        if any(not text.strip() for text in value):
            raise ValueError("a bad word cannot be empty")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens})")
        if self.stop and not self.detokenize:
            raise ValueError("stop strings need detokenize=True; use stop_token_ids instead")
        return self

    @property
    def greedy(self) -> bool:
        return self.temperature == 0
