"""What crosses the process boundary, as msgpack frames: no pickle, one batched message a step."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.core.request import SchedulerStats, SequenceOutput
from octavo.sampling_params import SamplingParams


class AddRequest(msgspec.Struct, tag=True, kw_only=True):
    """A request for the core. With `output_token_ids` it is one that resumes after a restart: sequence `index` alone.

    `seed` is always set: the front draws one for requests that bring none, so a resumed request repeats its draws.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    arrival_time: float
    priority: int = 0
    cache_salt: str | None = None
    bad_word_ids: list[list[int]] = msgspec.field(default_factory=list)
    index: int = 0
    num_sequences: int = 1
    output_token_ids: list[int] = msgspec.field(default_factory=list)


class Abort(msgspec.Struct, tag=True):
    """Frees the requests' sequences; those of `indices` only, if given (a stop string ended one of n)."""

    request_id: str
    index: int | None = None


class Shutdown(msgspec.Struct, tag=True):
    """End the core."""


class CoreReady(msgspec.Struct, tag=True):
    """The core has loaded, sized its cache and produced a warm-up token."""

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    architecture: str
    dtype: str
    weight_bytes: int


class CoreFailed(msgspec.Struct, tag=True):
    """The core ends because of this. `kind` is the error class's name for faults of the configuration."""

    message: str
    kind: str = ""


class RequestRejected(msgspec.Struct, tag=True):
    """Admission refused the request; no other is affected."""

    request_id: str
    message: str
    param: str | None = None
    code: str | None = None


class StepOutputs(msgspec.Struct, tag=True):
    """All that one step produced."""

    outputs: list[SequenceOutput]
    stats: SchedulerStats
    step_id: int = 0


FrontMessage = AddRequest | Abort | Shutdown
CoreMessage = CoreReady | CoreFailed | RequestRejected | StepOutputs


def _enc_hook(value: Any) -> Any:
    if isinstance(value, SamplingParams):
        return value.model_dump(exclude_defaults=True)
    raise TypeError(f"{type(value).__name__} does not cross the process boundary")


def _dec_hook(kind: type, value: Any) -> Any:
    if kind is SamplingParams:
        return SamplingParams(**value)
    raise TypeError(f"{kind.__name__} does not cross the process boundary")


def encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=_enc_hook)


def front_decoder() -> msgspec.msgpack.Decoder[FrontMessage]:
    """For the core: reads what the front sends."""
    return msgspec.msgpack.Decoder(FrontMessage, dec_hook=_dec_hook)


def core_decoder() -> msgspec.msgpack.Decoder[CoreMessage]:
    """For the front: reads what the core sends."""
    return msgspec.msgpack.Decoder(CoreMessage, dec_hook=_dec_hook)
