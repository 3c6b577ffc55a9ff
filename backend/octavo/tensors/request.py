"""TensorRequest: from named tensors and request parameters to what the engine takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from octavo.errors import RequestError, nearest
from octavo.flags import Shape
from octavo.sampling_params import SamplingParams
from octavo.server.protocol.chat import Message
from octavo.tensors.specs import INPUTS

DEFAULT_MAX_TOKENS = 16
"""As in vLLM's backend and OpenAI's completions."""

_FLAGS = {
    "return_finish_reason": "finish_reason",
    "return_cumulative_logprob": "cumulative_logprob",
    "return_logprobs": "logprobs",
    "return_num_input_tokens": "num_input_tokens",
    "return_num_output_tokens": "num_output_tokens",
}
_NAMES = tuple(spec.name for spec in INPUTS)
_DATATYPES = {spec.name: spec.datatype for spec in INPUTS}
_MANY = frozenset(spec.name for spec in INPUTS if spec.dims == (-1,))
# Parameters that are no sampling parameters; the tensors of these names say the same.
_OWN = frozenset({"priority", "request_id", "cache_salt", "timeout"})
_SERVER_PREFIX = "triton_"
"""Parameters of the inference server's own, which it may pass on."""


@dataclass(frozen=True, slots=True)
class TensorRequest:
    """
    Attributes:
        prompt: text or token ids; None if there are `messages`.
        echo: the prompt's text stands before each sequence's.
        outputs: names of the output tensors asked for, text_output always.
        wants_logprobs: the parameter logprobs was given; else the tensor is `null`.
        timeout: seconds; None leaves it to the engine.
    """

    prompt: str | list[int] | None
    messages: list[Message] | None
    params: SamplingParams
    stream: bool
    echo: bool
    outputs: frozenset[str]
    wants_logprobs: bool = False
    priority: int = 0
    request_id: str | None = None
    cache_salt: str | None = None
    timeout: float | None = None

    @classmethod
    def parse(cls, inputs: Mapping[str, Sequence[Any]], parameters: Mapping[str, Any]) -> Self:
        """
        Args:
            inputs: values of the tensors that came, by name; BYTES as bytes or str.
            parameters: the request's parameters, scalars. A list or an object may be given as a JSON string.

        Raises:
            RequestError: naming the tensor or the parameter at fault.
        """
        for name in inputs:
            if name not in _NAMES:
                raise RequestError(f"unknown input '{name}'{nearest(name, _NAMES)}", name)
        tensors = {name: _values(name, values) for name, values in inputs.items()}
        if tensors.get("image"):
            raise RequestError("image: this model takes text alone; leave it out", "image")
        merged = {**parameters, **_json_object(tensors)}
        merged = {name: value for name, value in merged.items() if not name.startswith(_SERVER_PREFIX)}
        own = {name: merged.pop(name) for name in _OWN if name in merged}
        own.update({name: tensors[name][0] for name in ("priority", "request_id") if name in tensors})
        stream = _flag(tensors, "stream", False)
        outputs = {"text_output", *(name for flag, name in _FLAGS.items() if _flag(tensors, flag, False))}
        prompt, messages = _prompt(tensors)
        if isinstance(prompt, list):
            outputs |= {"output_ids", "num_output_tokens"}
        return cls(
            prompt=prompt,
            messages=messages,
            params=_sampling_params(merged, outputs),
            stream=stream,
            echo=_echo(tensors, prompt, stream),
            outputs=frozenset(outputs),
            wants_logprobs=merged.get("logprobs") is not None,
            priority=_integer("priority", own.get("priority", 0)),
            request_id=_text_or_none("request_id", own.get("request_id")),
            cache_salt=_text_or_none("cache_salt", own.get("cache_salt")),
            timeout=_seconds(own.get("timeout")),
        )


def _values(name: str, values: Sequence[Any]) -> list[Any]:
    found = list(values)
    if name not in _MANY and len(found) != 1:
        raise RequestError(f"{name} has {len(found)} values; it takes one", name)
    if _DATATYPES[name] != "BYTES":
        return found
    return [_text(name, value) for value in found]


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise RequestError(f"{name} must be text, not {type(value).__name__}", name)
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8: byte {value[error.start]:#04x} at {error.start}", name) from None


def _json_object(tensors: Mapping[str, list[Any]]) -> dict[str, Any]:
    if "sampling_parameters" not in tensors:
        return {}
    text = tensors["sampling_parameters"][0]
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise RequestError(f"sampling_parameters is not JSON: {error}", "sampling_parameters") from None
    if not isinstance(value, dict):
        raise RequestError("sampling_parameters must be a JSON object", "sampling_parameters")
    return value


def _prompt(tensors: Mapping[str, list[Any]]) -> tuple[str | list[int] | None, list[Message] | None]:
    text = tensors["text_input"][0] if "text_input" in tensors else None
    given = [name for name in ("input_ids", "messages") if name in tensors]
    if len(given) == 2 or (given and text):
        both = "', '".join(["text_input"] * bool(text) + given)
        raise RequestError(f"'{both}' are given; a prompt is one of them", given[0])
    if "input_ids" in tensors:
        return [int(token_id) for token_id in tensors["input_ids"]], None
    if "messages" in tensors:
        return None, _messages(tensors["messages"][0])
    if text is None:
        raise RequestError("text_input is required (or input_ids, or messages)", "text_input")
    return text, None


def _messages(text: str) -> list[Message]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"messages is not JSON: {error}", "messages") from None
    if not isinstance(value, list) or not value:
        raise RequestError("messages must be a JSON array of at least one message", "messages")
    found = []
    for place, one in enumerate(value):
        try:
            found.append(Message.parse(one))
        except RequestError as error:
            raise RequestError(f"messages[{place}]: {error.message}", "messages", error.code) from None
    return found


def _echo(tensors: Mapping[str, list[Any]], prompt: str | list[int] | None, stream: bool) -> bool:
    if "exclude_input_in_output" not in tensors:
        return isinstance(prompt, str) and not stream
    echo = not _flag(tensors, "exclude_input_in_output", True)
    if echo and stream:
        raise RequestError(
            "exclude_input_in_output: false is not possible when streaming; leave it out, or stream: false",
            "exclude_input_in_output",
        )
    if echo and not isinstance(prompt, str):
        raise RequestError("exclude_input_in_output: false needs the prompt as text_input", "exclude_input_in_output")
    return echo


def _sampling_params(given: Mapping[str, Any], outputs: set[str]) -> SamplingParams:
    values = {name: _decoded(name, value) for name, value in given.items()}
    values = {"max_tokens": DEFAULT_MAX_TOKENS, **values}
    if "cumulative_logprob" in outputs and values.get("logprobs") is None:
        # Nothing is summed up unless logprobs are computed; 0: of the chosen tokens alone.
        values["logprobs"] = 0
    return SamplingParams(**values)


def _decoded(name: str, value: Any) -> Any:
    """A list or an object that came as a JSON string, since request parameters are scalars."""
    field = SamplingParams.model_fields.get(name)
    if field is None or not isinstance(value, str):
        return value
    shape = Shape.of(field.annotation)
    if not (shape.many or shape.mapping) or value[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _flag(tensors: Mapping[str, list[Any]], name: str, default: bool) -> bool:
    return bool(tensors[name][0]) if name in tensors else default


def _integer(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise RequestError(f"{name} must be an integer, got {value!r}", name) from None


def _text_or_none(name: str, value: Any) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > 1024:
        raise RequestError(f"{name} must be text of at most 1024 characters", name)
    return value


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise RequestError(f"timeout must be a number of seconds, got {value!r}", "timeout") from None
