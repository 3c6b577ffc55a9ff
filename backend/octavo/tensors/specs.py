"""The tensors: names, types and shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Datatype = Literal["BYTES", "BOOL", "INT32", "INT64", "UINT32", "FP32"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """
    Attributes:
        datatype: as the Open Inference Protocol spells it.
        dims: 1 for one value, -1 for any number.
    """

    name: str
    datatype: Datatype
    dims: tuple[int, ...]
    description: str
    optional: bool = True


INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("text_input", "BYTES", (1,), "The prompt. Required unless input_ids or messages is given."),
    TensorSpec("image", "BYTES", (-1,), "Images, base64; refused until the model takes images."),
    TensorSpec("stream", "BOOL", (1,), "One response a step instead of one at the end; default false."),
    TensorSpec(
        "sampling_parameters", "BYTES", (1,), "JSON object of sampling parameters; wins over request parameters."
    ),
    TensorSpec(
        "exclude_input_in_output", "BOOL", (1,), "Leave the prompt out of text_output; default true when streaming."
    ),
    TensorSpec("return_finish_reason", "BOOL", (1,), "Ask for finish_reason."),
    TensorSpec("return_cumulative_logprob", "BOOL", (1,), "Ask for cumulative_logprob."),
    TensorSpec("return_logprobs", "BOOL", (1,), "Ask for logprobs; how many is the parameter logprobs."),
    TensorSpec("return_num_input_tokens", "BOOL", (1,), "Ask for num_input_tokens."),
    TensorSpec("return_num_output_tokens", "BOOL", (1,), "Ask for num_output_tokens."),
    TensorSpec("input_ids", "INT64", (-1,), "The prompt as token ids; the answer has output_ids then."),
    TensorSpec("messages", "BYTES", (1,), "The prompt as a JSON array of chat messages, for the chat template."),
    TensorSpec("priority", "INT32", (1,), "Lower is served first under the priority policy."),
    TensorSpec("request_id", "BYTES", (1,), "Names the request; unique among those in flight."),
)

OUTPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("text_output", "BYTES", (-1,), "Text of each sequence; deltas when streaming."),
    TensorSpec("finish_reason", "BYTES", (-1,), "stop, length or abort of each sequence; None while it runs."),
    TensorSpec("cumulative_logprob", "FP32", (-1,), "Log-probability of each sequence so far."),
    TensorSpec(
        "logprobs", "BYTES", (-1,), "JSON of each sequence: a list with an object a token; null if not asked for."
    ),
    TensorSpec("num_input_tokens", "UINT32", (1,), "Tokens of the prompt."),
    TensorSpec("num_output_tokens", "UINT32", (-1,), "Tokens of each sequence; deltas when streaming."),
    TensorSpec(
        "output_ids",
        "INT64",
        (-1,),
        "Token ids, sequence after sequence, as many of each as num_output_tokens says; deltas when streaming.",
    ),
)
