"""JSONL in and out: a line becomes a job, a result becomes a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from octavo.engine.intake import Prompt
from octavo.errors import RequestError, nearest
from octavo.outputs import CompletionOutput, Logprob, RequestOutput
from octavo.sampling_params import SamplingParams

_PROMPTS = ("prompt", "prompt_token_ids", "messages")


@dataclass(frozen=True, slots=True)
class Job:
    """One line of input: a prompt or a conversation, and its parameters.

    Attributes:
        line: its number in the input, from 1.
        id: whatever the line called itself; given back as it is.
    """

    line: int
    params: SamplingParams
    prompt: Prompt | None = None
    messages: list[dict[str, Any]] | None = None
    id: Any = None


def parse(line: int, raw: bytes, defaults: SamplingParams) -> Job:
    """Reads one line; its sampling parameters win over `defaults`.

    Raises:
        RequestError: not UTF-8, not a JSON object, no prompt or two, an unknown key, or a bad parameter.
    """
    try:
        record = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError(f"not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start}") from None
    except ValueError as error:
        raise RequestError(f"not JSON: {error}") from None
    except RecursionError:
        raise RequestError("not JSON: nested too deep") from None
    if not isinstance(record, dict):
        raise RequestError('a line is an object such as {"prompt": "Hello"}')
    known = (*_PROMPTS, "id", *SamplingParams.model_fields)
    for key in record:
        if key not in known:
            raise RequestError(f"unknown key '{key}'{nearest(key, known)}", key)
    given = [key for key in _PROMPTS if key in record]
    if len(given) != 1:
        what = " and ".join(given) if given else "none"
        raise RequestError(f"a line has exactly one of prompt, prompt_token_ids and messages; this one has {what}")
    own = {key: value for key, value in record.items() if key in SamplingParams.model_fields}
    params = SamplingParams(**{**defaults.model_dump(), **own}) if own else defaults
    return Job(line, params, id=record.get("id"), **_content(given[0], record[given[0]]))


def _content(key: str, value: Any) -> dict[str, Any]:
    if key == "messages":
        if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
            raise RequestError("messages must be a list of objects with role and content", "messages")
        return {"messages": value}
    if key == "prompt" and not isinstance(value, str):
        raise RequestError(f"prompt must be text, not {type(value).__name__}", "prompt")
    return {"prompt": {key: value}}


def format_result(line: int, job_id: Any, output: RequestOutput) -> dict[str, Any]:
    """The output line of a request that went well."""
    record: dict[str, Any] = {"line": line}
    if job_id is not None:
        record["id"] = job_id
    record["prompt"] = output.prompt
    record["outputs"] = [_format_sequence(sequence) for sequence in sorted(output.outputs, key=lambda one: one.index)]
    if output.prompt_logprobs is not None:
        record["prompt_logprobs"] = [_format_logprobs(one) for one in output.prompt_logprobs]
    record["usage"] = {
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens,
        "completion_tokens": output.num_output_tokens,
    }
    return record


def format_error(line: int, job_id: Any, error: RequestError) -> dict[str, Any]:
    """The output line of one that did not."""
    record: dict[str, Any] = {"line": line}
    if job_id is not None:
        record["id"] = job_id
    return {**record, "error": error.message, "param": error.param}


def _format_sequence(sequence: CompletionOutput) -> dict[str, Any]:
    record: dict[str, Any] = {
        "index": sequence.index,
        "text": sequence.text,
        "token_ids": sequence.token_ids,
        "finish_reason": sequence.finish_reason,
        "stop_reason": sequence.stop_reason,
    }
    if sequence.logprobs is not None:
        record["cumulative_logprob"] = sequence.cumulative_logprob
        record["logprobs"] = [_format_logprobs(one) for one in sequence.logprobs]
    return record


def _format_logprobs(candidates: dict[int, Logprob] | None) -> list[dict[str, Any]] | None:
    """The chosen token first; bytes as a list of numbers, as JSON has none."""
    if candidates is None:
        return None
    records = []
    for token_id, logprob in candidates.items():
        record = {"token_id": token_id, **asdict(logprob)}
        record["token_bytes"] = None if logprob.token_bytes is None else list(logprob.token_bytes)
        records.append(record)
    return records
