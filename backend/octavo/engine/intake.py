"""Intake: from what a caller passes in to a request the core can take, or a clear refusal."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from octavo.config import EngineConfig
from octavo.engine.messages import AddRequest
from octavo.errors import RequestError
from octavo.sampling_params import SamplingParams
from octavo.text.tokenizer import Tokenizer


class TextPrompt(TypedDict):
    """A prompt to tokenise."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt already tokenised; `prompt` is the text it came from, if there is one."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str | None]


Prompt = str | TextPrompt | TokensPrompt | Sequence[int]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A checked request: the text, if known, and the message for the core."""

    prompt: str | None
    message: AddRequest


class Intake:
    """Checks and tokenises prompts for one model.

    Args:
        tokenizer: None for a model without one: only token ids are taken then.
        vocab_size: of the model; token ids from 0 to vocab_size - 1 are valid.
        max_model_len: longest prompt + output, in tokens.
    """

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer | None, *, vocab_size: int, max_model_len: int
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._max_num_seqs = config.max_num_seqs
        self._seeds = random.Random(config.seed) if config.seed is not None else None

    def admit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        arrival_time: float,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Admitted:
        """Raises RequestError, naming the field, for anything the core could not run."""
        if not isinstance(params, SamplingParams):
            raise RequestError(
                f"sampling_params must be SamplingParams, not {type(params).__name__}", "sampling_params"
            )
        text, token_ids = self._tokens(prompt)
        self._check_tokens(token_ids)
        self._check_params(params)
        if params.n > self._max_num_seqs:
            raise RequestError(
                f"n ({params.n}) is above max_num_seqs ({self._max_num_seqs}), the sequences that can run at once", "n"
            )
        return Admitted(
            text,
            AddRequest(
                request_id=request_id,
                prompt_token_ids=token_ids,
                params=params,
                seed=self._seed(params),
                arrival_time=arrival_time,
                priority=priority,
                cache_salt=cache_salt,
                bad_word_ids=self._bad_word_ids(params),
                num_sequences=params.n,
            ),
        )

    def _tokens(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, self._encode(prompt)
        if isinstance(prompt, dict):
            unknown = set(prompt) - {"prompt", "prompt_token_ids"}
            if unknown:
                raise RequestError(
                    f"unknown prompt key '{sorted(map(str, unknown))[0]}'; known: prompt, prompt_token_ids", "prompt"
                )
            text = prompt.get("prompt")
            if text is not None and not isinstance(text, str):
                raise RequestError(f"prompt must be text, not {type(text).__name__}", "prompt")
            ids = prompt.get("prompt_token_ids")
            if ids is None:
                if text is None:
                    raise RequestError("a prompt dict needs 'prompt' or 'prompt_token_ids'", "prompt")
                return text, self._encode(text)
            return text, _id_list(ids)
        return None, _id_list(prompt)

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            raise RequestError(
                "this engine has no tokenizer (skip_tokenizer_init): pass {'prompt_token_ids': [...]}", "prompt"
            )
        return self._tokenizer.encode(text)

    def _check_tokens(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise RequestError("the prompt is empty: it must have at least one token", "prompt")
        low, high = min(token_ids), max(token_ids)
        if low < 0 or high >= self._vocab_size:
            bad = low if low < 0 else high
            raise RequestError(
                f"token id {bad} in the prompt is out of range: this model knows 0 to {self._vocab_size - 1}", "prompt"
            )
        if len(token_ids) >= self._max_model_len:
            raise RequestError(
                f"the prompt has {len(token_ids)} tokens, but this model's context is {self._max_model_len} tokens, "
                "prompt and output together, and at least one must be left for the output: shorten the prompt",
                "prompt",
                "context_length_exceeded",
            )

    def _check_params(self, params: SamplingParams) -> None:
        named = {"logit_bias": params.logit_bias or (), "stop_token_ids": params.stop_token_ids}
        for field, ids in named.items():
            for token_id in ids:
                if token_id >= self._vocab_size:
                    raise RequestError(
                        f"{field}: token id {token_id} is out of range: this model knows 0 to {self._vocab_size - 1}",
                        field,
                    )
        if self._tokenizer is None:
            for field, given in (("stop", params.stop), ("bad_words", params.bad_words)):
                if given:
                    raise RequestError(f"{field} needs a tokenizer, and this engine has none", field)
            if params.detokenize:
                raise RequestError(
                    "this engine has no tokenizer (skip_tokenizer_init): pass detokenize=False", "detokenize"
                )

    def _bad_word_ids(self, params: SamplingParams) -> list[list[int]]:
        if not params.bad_words or self._tokenizer is None:
            return []
        return self._tokenizer.bad_word_ids(params.bad_words)

    def _seed(self, params: SamplingParams) -> int:
        if params.seed is not None:
            return params.seed & (2**64 - 1)
        return self._seeds.getrandbits(63) if self._seeds is not None else secrets.randbits(63)


def _id_list(ids: object) -> list[int]:
    if isinstance(ids, Sequence) and not isinstance(ids, str | bytes):
        listed = list(ids)
        if all(type(token_id) is int for token_id in listed):
            return listed
    raise RequestError(
        f"a prompt is text, a list of token ids, {{'prompt': text}} or {{'prompt_token_ids': [ids]}}; got {_kind(ids)}",
        "prompt",
    )


def _kind(value: object) -> str:
    if isinstance(value, list) and value:
        odd = next((item for item in value if type(item) is not int), value[0])
        return f"a list with {type(odd).__name__} in it"
    return type(value).__name__
