"""Workload definitions: what is asked of the engine, the same every time for the same options.

Prompts are slices of real text (`octavo.bench.text`), at random places, so that no two begin alike and the prefix
cache has nothing to reuse.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import ClassVar, Self, TypeVar

from pydantic import Field, model_validator

from octavo.errors import ConfigError
from octavo.validation import Knobs

CHARS_PER_TOKEN = 4
T = TypeVar("T", int, str)


class ThroughputWorkload(Knobs):
    """Many requests at once, offline: greedy, and each runs to its length whatever the model says."""

    noun: ClassVar[str] = "benchmark option"

    num_requests: int = Field(64, ge=1, description="Requests in the batch.")
    min_prompt_len: int = Field(32, ge=1, description="Shortest prompt, in tokens; lengths are uniform.")
    max_prompt_len: int = Field(512, ge=1, description="Longest prompt, in tokens.")
    min_output_len: int = Field(16, ge=1, description="Shortest output, in tokens; lengths are uniform.")
    max_output_len: int = Field(256, ge=1, description="Longest output, in tokens.")
    workload_seed: int = Field(0, ge=0, description="Seeds the choice of text and lengths.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_range(self.min_prompt_len, self.max_prompt_len, "prompt_len")
        _check_range(self.min_output_len, self.max_output_len, "output_len")
        return self


class LatencyWorkload(Knobs):
    """One request at a time."""

    noun: ClassVar[str] = "benchmark option"

    prompt_len: int = Field(128, ge=1, description="Prompt, in tokens.")
    output_len: int = Field(128, ge=2, description="Output, in tokens.")
    repeats: int = Field(3, ge=1, description="Measured requests; the median counts.")
    bandwidth_bytes: int | None = Field(
        None, ge=1 << 20, description="Buffer of the bandwidth probe. Default: three times the last-level cache."
    )
    workload_seed: int = Field(0, ge=0, description="Seeds the choice of text.")


class ServeWorkload(Knobs):
    """Concurrent streaming clients against /v1/completions of any OpenAI server."""

    noun: ClassVar[str] = "benchmark option"

    url: str = Field("http://127.0.0.1:8000", description="The server's base URL, with or without /v1.")
    served_model: str | None = Field(None, description="Model to ask for. Default: the first of /v1/models.")
    api_key: str | None = Field(None, repr=False, description="Sent as a bearer token.")
    concurrency: int = Field(8, ge=1, le=4096, description="Clients at once.")
    num_requests: int = Field(64, ge=1, description="Requests in all.")
    min_prompt_len: int = Field(32, ge=1, description="Shortest prompt, in tokens of about four characters.")
    max_prompt_len: int = Field(512, ge=1, description="Longest prompt, likewise.")
    min_output_len: int = Field(16, ge=1, description="Shortest output, in tokens; lengths are uniform.")
    max_output_len: int = Field(256, ge=1, description="Longest output, in tokens.")
    ignore_eos: bool = Field(True, description="Run to the full length; turn off if the server doesn't know it.")
    timeout_seconds: float = Field(600.0, gt=0, description="Most a client waits for the next bytes.")
    workload_seed: int = Field(0, ge=0, description="Seeds the choice of text and lengths.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_range(self.min_prompt_len, self.max_prompt_len, "prompt_len")
        _check_range(self.min_output_len, self.max_output_len, "output_len")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, got '{self.url}'")
        return self


def _check_range(low: int, high: int, name: str) -> None:
    if low > high:
        raise ValueError(f"min_{name} ({low}) is above max_{name} ({high})")


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A prompt of token ids and the number of tokens to generate."""

    prompt_token_ids: list[int]
    output_len: int


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A prompt of text and the number of tokens to generate."""

    prompt: str
    output_len: int


def corpus() -> str:
    """The text that prompts are cut from: prose in several languages, in the public domain or written for octavo."""
    return (files("octavo.bench") / "text" / "prose.txt").read_text(encoding="utf-8")


def throughput_requests(workload: ThroughputWorkload, tokens: Sequence[int]) -> list[TokenRequest]:
    """The batch, cut from a tokenised corpus.

    Raises:
        ConfigError: the corpus is shorter than the longest prompt.
    """
    return [TokenRequest(prompt, length) for prompt, length in _draw(workload, list(tokens), unit=1, noun="tokens")]


def serve_requests(workload: ServeWorkload, text: str) -> list[TextRequest]:
    """The requests to send; prompt lengths are approximate, since the server's tokenizer is unknown."""
    drawn = _draw(workload, list(text), unit=CHARS_PER_TOKEN, noun="characters")
    return [TextRequest("".join(prompt), length) for prompt, length in drawn]


def latency_prompts(workload: LatencyWorkload, tokens: Sequence[int]) -> list[list[int]]:
    """One prompt for the warm-up and one a repeat, all different."""
    rng = random.Random(workload.workload_seed)
    starts = _starts(rng, workload.repeats + 1, len(tokens), workload.prompt_len, "tokens")
    return [list(tokens[start : start + workload.prompt_len]) for start in starts]


def _draw(
    workload: ThroughputWorkload | ServeWorkload, source: list[T], *, unit: int, noun: str
) -> list[tuple[list[T], int]]:
    rng = random.Random(workload.workload_seed)
    count = workload.num_requests
    prompt_lens = [rng.randint(workload.min_prompt_len, workload.max_prompt_len) * unit for _ in range(count)]
    output_lens = [rng.randint(workload.min_output_len, workload.max_output_len) for _ in range(count)]
    starts = _starts(rng, count, len(source), workload.max_prompt_len * unit, noun)
    return [
        (source[start : start + prompt_len], output_len)
        for start, prompt_len, output_len in zip(starts, prompt_lens, output_lens, strict=True)
    ]


def _starts(rng: random.Random, count: int, available: int, longest: int, noun: str) -> list[int]:
    """`count` different places; with repetitions only if there are fewer places than that."""
    places = available - longest + 1
    if places < 1:
        raise ConfigError(f"the benchmark's text has {available} {noun}, too few for a prompt of {longest}")
    if places >= count:
        return rng.sample(range(places), count)
    return rng.choices(range(places), k=count)
