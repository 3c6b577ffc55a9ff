"""octavo's routes on KServe's app: the OpenAI API under two prefixes, and what KServe's SDK lacks of the Open Inference
Protocol: generate and generate_stream."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from kserve.errors import InvalidInput
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo import AsyncEngine, OctavoError, RequestError
from octavo.server.app import create_app
from octavo.server.body import read_json
from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError, api_error
from octavo.server.merge import while_connected
from octavo.server.readiness import check_ready
from octavo.tensors import INPUTS, TensorRequest, generate
from octavo_adapters.kserve.model import OctavoModel

_PREFIX_VARIABLE = "KSERVE_OPENAI_ROUTE_PREFIX"
# KServe's own v1 protocol has /v1/models too: that answer is for both.
_PASSED = frozenset(
    {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/health", "/ready", "/version"}
)
_TENSORS = frozenset(spec.name for spec in INPUTS)


class Passage(BaseRoute):
    """Lets requests for some paths through to another app, unchanged."""

    def __init__(self, app: ASGIApp, paths: frozenset[str]) -> None:
        self._app = app
        self._paths = paths

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        here = scope["type"] == "http" and scope["path"] in self._paths
        return (Match.FULL, {}) if here else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def openai_prefix() -> str:
    """`/openai`, or what KServe's variable says."""
    prefix = os.environ.get(_PREFIX_VARIABLE, "/openai").rstrip("/")
    return prefix if not prefix or prefix.startswith("/") else f"/{prefix}"


def add_routes(app: FastAPI, engine: AsyncEngine, model: OctavoModel, config: ServerConfig) -> None:
    """Before KServe's own, which come when the server starts, and whatever OpenAI layer its SDK may bring.

    Raises:
        ConfigError: the options of the OpenAI app are wrong.
    """
    openai = create_app(engine, config)
    models = _Models(engine, model.name, openai)
    routes: list[BaseRoute] = [
        Passage(openai, _PASSED),
        Route("/v1/models", models.listed, methods=["GET"]),
        Route("/v1/models/{name:path}", models.one, methods=["GET"]),
        Route("/v2/models/{name}/generate", _Generate(engine, model, config).whole, methods=["POST"]),
        Route("/v2/models/{name}/generate_stream", _Generate(engine, model, config).streamed, methods=["POST"]),
    ]
    if openai_prefix():
        routes.append(Mount(openai_prefix(), openai))
    app.router.routes[:0] = routes


class _Models:
    """GET /v1/models is OpenAI's list and KServe's at once, and so is one model."""

    def __init__(self, engine: AsyncEngine, name: str, openai: FastAPI) -> None:
        self._engine = engine
        self._name = name
        self._openai = openai

    async def listed(self, request: Request) -> Response:
        status, body = await _inner(self._openai, request)
        return JSONResponse({**body, "models": [self._name]} if status == 200 else body, status)

    async def one(self, request: Request) -> Response:
        status, body = await _inner(self._openai, request)
        name = request.path_params["name"]
        if status == 200 or name == self._name:
            try:
                check_ready(self._engine)
            except ApiError as error:
                return error.response()
            return JSONResponse({**(body if status == 200 else {}), "name": name, "ready": True})
        return JSONResponse(body, status)


async def _inner(app: ASGIApp, request: Request) -> tuple[int, dict[str, Any]]:
    """(status, body) of what another app says to a request."""
    said: dict[str, Any] = {"body": b""}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            said["status"] = message["status"]
        else:
            said["body"] += message.get("body", b"")

    await app(request.scope, request.receive, send)
    return said["status"], json.loads(said["body"])


class _Generate:
    """The generate extension: tensors and parameters as one JSON object, under the names the tensors have."""

    def __init__(self, engine: AsyncEngine, model: OctavoModel, config: ServerConfig) -> None:
        self._engine = engine
        self._model = model
        self._config = config

    async def whole(self, request: Request) -> Response:
        asked = await self._read(request)
        if isinstance(asked, Response):
            return asked
        outputs: dict[str, list[Any]] = {}
        failure: list[Response] = []

        async def work() -> None:
            try:
                async for tensors, _ in generate(self._engine, asked):
                    outputs.update(tensors)
            except OctavoError as error:
                failure.append(_told(error))

        await while_connected(request.receive, work())
        return failure[0] if failure else JSONResponse(self._body(outputs))

    async def streamed(self, request: Request) -> Response:
        asked = await self._read(request, stream=True)
        if isinstance(asked, Response):
            return asked
        stream = generate(self._engine, asked)
        first: list[dict[str, list[Any]]] = []
        failure: list[Response] = []

        async def begin() -> None:
            try:
                first.append((await anext(stream))[0])
            except OctavoError as error:
                failure.append(_told(error))

        # Until something is sent nobody else notices that the client is gone.
        await while_connected(request.receive, begin())
        if not first:
            await stream.aclose()
            return failure[0] if failure else Response(status_code=499)
        return StreamingResponse(self._events(first[0], stream), media_type="text/event-stream")

    async def _events(
        self, first: dict[str, list[Any]], stream: AsyncGenerator[tuple[dict[str, list[Any]], bool], None]
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(stream):
            yield _event(self._body(first))
            try:
                async for tensors, _ in stream:
                    yield _event(self._body(tensors))
            except OctavoError as error:
                yield _event({"error": api_error(error).message})

    async def _read(self, request: Request, *, stream: bool = False) -> TensorRequest | Response:
        name = request.path_params["name"]
        if name != self._model.name:
            return JSONResponse({"error": f"Model with name {name} does not exist."}, 404)
        try:
            body = await read_json(request, self._config.max_request_bytes)
            if not isinstance(body, dict):
                raise InvalidInput("the body must be a JSON object")
            parameters = dict(body.pop("parameters", None) or {})
            inputs = {
                key: value if isinstance(value, list) else [value] for key, value in body.items() if key in _TENSORS
            }
            parameters.update({key: value for key, value in body.items() if key not in _TENSORS})
            if stream:
                inputs["stream"] = [True]
            elif inputs.pop("stream", [False])[0]:
                raise RequestError("stream: true is for generate_stream", "stream")
            return TensorRequest.parse(inputs, parameters)
        except (ApiError, OctavoError) as error:
            return _told(error)
        except InvalidInput as error:
            return JSONResponse({"error": str(error)}, 400)

    def _body(self, outputs: dict[str, list[Any]]) -> dict[str, Any]:
        single = {name: values[0] if len(values) == 1 else values for name, values in outputs.items()}
        return {"model_name": self._model.name, "model_version": "1", **single}


def _told(error: Exception) -> Response:
    failure = api_error(error)
    return JSONResponse({"error": failure.message}, failure.status, failure.headers)


def _event(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()
