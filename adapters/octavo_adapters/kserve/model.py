"""OctavoModel: KServe's v1 and v2 inference through an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import kserve
from fastapi import HTTPException
from kserve.errors import InvalidInput, ModelNotReady

from octavo import AsyncEngine, OctavoError, RequestError
from octavo.server.errors import api_error
from octavo.tensors import INPUTS, OUTPUTS, TensorRequest, TensorSpec, generate
from octavo_adapters.kserve.tensors import infer_response, input_values, parameter_values

_TEXT_KEYS = ("text_input", "prompt")
_ASKED = ("exclude_input_in_output", "return_finish_reason", "return_num_output_tokens")


class OctavoModel(kserve.Model):  # type: ignore[misc]
    """The model as the server's registry has it. It is registered before the engine is ready; `healthy` tells.

    A request is answered whole here: streams are for /generate_stream and the OpenAI routes.
    """

    def __init__(self, name: str, engine: AsyncEngine) -> None:
        super().__init__(name)
        self._engine = engine
        self.ready = True

    async def healthy(self) -> bool:
        """Asked before each request, and for `/v2/models/<m>/ready`; while the core is being replaced requests wait."""
        return self._engine.status().state in ("ready", "recovering")

    def get_input_types(self) -> list[dict[str, Any]]:
        return [_described(spec) for spec in INPUTS]

    def get_output_types(self) -> list[dict[str, Any]]:
        return [_described(spec) for spec in OUTPUTS]

    async def predict(self, payload: Any, headers: dict[str, str] | None = None, *_: Any) -> Any:
        """v1: `{"instances": [...]}` to `{"predictions": [...]}`; v2: an InferRequest to an InferResponse."""
        if isinstance(payload, kserve.InferRequest):
            parameters = parameter_values(payload.parameters)
            if payload.id:
                parameters.setdefault("request_id", payload.id)
            answer = await self.answer(input_values(payload), parameters, over_grpc=bool(payload.from_grpc))
            return infer_response(payload, self.name, answer)
        instances = payload.get("instances") if isinstance(payload, dict) else None
        if not isinstance(instances, list) or not instances:
            raise InvalidInput('the body must be {"instances": [...]} with at least one prompt or object')
        tasks = [asyncio.ensure_future(self._instance(one, place)) for place, one in enumerate(instances)]
        try:
            return {"predictions": await asyncio.gather(*tasks)}
        finally:
            # One that failed fails the request, and one that left ends it: the others have nobody to answer.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def answer(
        self, inputs: Mapping[str, list[Any]], parameters: Mapping[str, Any], *, over_grpc: bool = False
    ) -> dict[str, list[Any]]:
        """Output tensors of a request that does not stream. Raises KServe's errors."""
        try:
            request = TensorRequest.parse(inputs, parameters)
            if request.stream:
                raise RequestError("stream: this endpoint answers once; use generate_stream, or /v1", "stream")
            async for tensors, _ in generate(self._engine, request):
                return tensors
        except OctavoError as error:
            raise self.failure(error, over_grpc=over_grpc) from None
        raise RuntimeError("the engine gave no answer")

    def failure(self, error: OctavoError, *, over_grpc: bool = False) -> Exception:
        """The same error as KServe tells it, over either protocol."""
        told = api_error(error)
        failure: Exception = ModelNotReady(self.name, told.message)
        if isinstance(error, RequestError):
            failure = InvalidInput(error.message)
        elif not over_grpc and told.status < 500:
            failure = HTTPException(told.status, told.message, headers=told.headers)
        return failure

    async def _instance(self, instance: Any, place: int) -> Any:
        if isinstance(instance, str):
            answer = await self.answer({"text_input": [instance], "exclude_input_in_output": [True]}, {})
            return answer["text_output"][0]
        if not isinstance(instance, dict):
            raise InvalidInput(f"instances[{place}] must be a text or an object, not {type(instance).__name__}")
        rest = dict(instance)
        texts = [rest.pop(key) for key in _TEXT_KEYS if key in rest]
        if len(texts) != 1 or not isinstance(texts[0], str):
            raise InvalidInput(f"instances[{place}] needs one text, text_input or prompt")
        parameters = {**rest, **(rest.pop("parameters", None) or {})}
        parameters.pop("parameters", None)
        asked = {name: [True] for name in _ASKED}
        answer = await self.answer({"text_input": [texts[0]], **asked}, parameters)
        return {name: values[0] if len(values) == 1 else values for name, values in answer.items()}


def _described(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.dims)}
