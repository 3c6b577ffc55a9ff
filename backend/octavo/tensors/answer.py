"""TensorAnswer: from RequestOutputs to named tensors."""

from __future__ import annotations

import json
from typing import Any

from octavo.outputs import CompletionOutput, RequestOutput
from octavo.tensors.request import TensorRequest


class TensorAnswer:
    """One request's output tensors. Every sequence has its element in each response, with news or without."""

    def __init__(self, request: TensorRequest) -> None:
        self._request = request
        self._reasons: list[str] = ["None"] * request.params.n
        self._cumulative = [0.0] * request.params.n

    def build(self, output: RequestOutput) -> dict[str, list[Any]]:
        """Values by output tensor, for the deltas in `output`; BYTES as str."""
        count = self._request.params.n
        parts: list[CompletionOutput | None] = [None] * count
        for part in output.outputs:
            parts[part.index] = part
            if part.finish_reason is not None:
                self._reasons[part.index] = part.finish_reason
            if part.cumulative_logprob is not None:
                self._cumulative[part.index] = part.cumulative_logprob
        prefix = (output.prompt or "") if self._request.echo else ""
        found: dict[str, list[Any]] = {
            "text_output": [prefix + (part.text if part is not None else "") for part in parts]
        }
        wanted = self._request.outputs
        if "finish_reason" in wanted:
            found["finish_reason"] = list(self._reasons)
        if "cumulative_logprob" in wanted:
            found["cumulative_logprob"] = list(self._cumulative)
        if "logprobs" in wanted:
            found["logprobs"] = [_logprobs_json(part, self._request) for part in parts]
        if "num_input_tokens" in wanted:
            found["num_input_tokens"] = [len(output.prompt_token_ids)]
        if "num_output_tokens" in wanted:
            found["num_output_tokens"] = [len(part.token_ids) if part is not None else 0 for part in parts]
        if "output_ids" in wanted:
            found["output_ids"] = [token for part in parts if part is not None for token in part.token_ids]
        return found


def _logprobs_json(part: CompletionOutput | None, request: TensorRequest) -> str:
    if not request.wants_logprobs:
        return "null"
    entries = part.logprobs or [] if part is not None else []
    return json.dumps(
        [
            {
                token: {"logprob": one.logprob, "rank": one.rank, "decoded_token": one.decoded_token}
                for token, one in entry.items()
            }
            for entry in entries
        ]
    )
