"""KServe's InferRequest to octavo's tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse
from kserve.errors import InvalidInput

from octavo.tensors import OUTPUTS

_SPECS = {spec.name: spec for spec in OUTPUTS}
# The protocol's own, about how tensors are sent.
_PROTOCOL = frozenset({"binary_data_output", "binary_data_size"})
_NUMPY: Mapping[str, Any] = {"BYTES": np.object_, "FP32": np.float32, "UINT32": np.uint32, "INT64": np.int64}


def input_values(request: InferRequest) -> dict[str, list[Any]]:
    """Values by tensor. BYTES are bytes over gRPC and text over REST. Raises InvalidInput for data of a wrong type."""
    found = {}
    for tensor in request.inputs:
        try:
            found[tensor.name] = np.asarray(tensor.as_numpy()).reshape(-1).tolist()
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"input '{tensor.name}' ({tensor.datatype}, {tensor.shape}): {error}") from None
    return found


def parameter_values(parameters: Any) -> dict[str, Any]:
    """Plain values: over gRPC they come as protobuf messages with one of several fields set."""
    found = {}
    for name, value in dict(parameters or {}).items():
        if name in _PROTOCOL:
            continue
        which = getattr(value, "WhichOneof", None)
        found[name] = value if which is None else getattr(value, which("parameter_choice"))
    return found


def infer_response(request: InferRequest, model_name: str, values: Mapping[str, list[Any]]) -> InferResponse:
    """The response with all output tensors in `values`."""
    outputs = []
    for name, data in values.items():
        kind = _SPECS[name].datatype
        encoded = [value.encode() for value in data] if kind == "BYTES" else data
        output = InferOutput(name=name, shape=[len(data)], datatype=kind)
        output.set_data_from_numpy(np.array(encoded, dtype=_NUMPY[kind]), binary_data=request.from_grpc)
        outputs.append(output)
    return InferResponse(
        response_id=request.id or "",
        model_name=model_name,
        infer_outputs=outputs,
        use_binary_outputs=request.use_binary_outputs,
        requested_outputs=request.request_outputs,
    )
