"""Every failure in OpenAI's error shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.errors import (
    EngineDeadError,
    EngineOverloadedError,
    EngineStoppedError,
    OctavoError,
    RequestError,
    RequestTimeoutError,
)
from octavo.server.request_id import SCOPE_KEY

logger = logging.getLogger("octavo.server")

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
OVERLOADED = "rate_limit_error"
# What a proxy logs for a client that left; nobody is there to read it.
CLIENT_CLOSED_REQUEST = 499


class ApiError(Exception):
    """A failure as HTTP tells it.

    Args:
        kind: OpenAI's error `type`; None chooses by status.
        headers: extra response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind or (SERVER_ERROR if status >= 500 else INVALID_REQUEST)
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return Response(
            msgspec.json.encode(self.body()), self.status, headers=self.headers, media_type="application/json"
        )


def api_error(error: Exception, scope: Scope | None = None) -> ApiError:
    """The same failure for HTTP. What is not octavo's own is a bug: logged with its traceback, told without.

    Args:
        scope: of the request, whose id is logged.
    """
    match error:
        case ApiError():
            return error
        case RequestError():
            return ApiError(400, error.message, param=error.param, code=error.code)
        case EngineOverloadedError():
            return ApiError(
                429,
                error.message,
                code="engine_overloaded",
                kind=OVERLOADED,
                headers={"Retry-After": str(error.retry_after)},
            )
        case RequestTimeoutError():
            # OpenAI's clients send a 408 again by themselves, and would wait as long once more, unless told not to.
            return ApiError(408, str(error), code="request_timeout", headers={"x-should-retry": "false"})
        case EngineDeadError():
            return ApiError(503, str(error), code="engine_dead")
        case EngineStoppedError():
            return ApiError(503, str(error), code="engine_not_ready", headers={"Retry-After": "1"})
        case OctavoError():
            return ApiError(500, str(error))
    logger.error("request %s failed unexpectedly", (scope or {}).get(SCOPE_KEY, "?"), exc_info=error)
    return ApiError(500, "the server made a mistake; its log says more", code="internal_error")


class Failsafe:
    """ASGI middleware: what nobody else caught is answered in the one shape, and logged once."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            await api_error(error, scope).response()(scope, receive, send)


def install(app: FastAPI) -> None:
    """Makes `app` answer every failure, its own and the framework's, in the one shape."""

    async def known(request: Request, error: Exception) -> Response:
        return api_error(error, request.scope).response()

    async def http(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return await known(request, error)
        path = request.url.path
        match error.status_code:
            case 404:
                failure = ApiError(404, f"there is no {request.method} {path} here", code="unknown_url")
            case 405:
                allowed = (error.headers or {}).get("Allow", "")
                failure = ApiError(
                    405,
                    f"{path} does not take {request.method}; it takes {allowed}",
                    code="method_not_allowed",
                    headers=error.headers,
                )
            case status:
                failure = ApiError(status, error.detail or HTTPStatus(status).phrase, headers=error.headers)
        return failure.response()

    async def misused(request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            return await known(request, error)
        fault = error.errors()[0]
        name = str(fault["loc"][-1])
        return ApiError(400, f"{name}: {fault['msg'].lower()}", param=name, code="invalid_value").response()

    async def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    for kind in (ApiError, OctavoError):
        app.add_exception_handler(kind, known)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, misused)
    app.add_exception_handler(ClientDisconnect, gone)
