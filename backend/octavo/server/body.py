"""Reads a request's JSON body: bounded, and stricter than Python's reader."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from fastapi import Request

from octavo.server.errors import ApiError

# What is read of a body that is refused for its size.
_DISCARD_BYTES = 1 << 28
_DISCARD_SECONDS = 5.0
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


async def read_json(request: Request, max_bytes: int) -> Any:
    """The body's value.

    Raises:
        ApiError: 413 for more than `max_bytes` (counted while reading), 415 for another media type, 400 for what is
            not JSON in UTF-8. NaN, infinities, lone surrogates and repeated keys are not JSON here.
    """
    _check_media(request)
    length = request.headers.get("content-length", "0")
    stream = request.stream()
    if length.isdecimal() and int(length) > max_bytes:
        await _discard(request, stream)
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in stream:
        size += len(chunk)
        if size > max_bytes:
            chunks.clear()
            await _discard(request, stream)
            raise _too_large(max_bytes)
        chunks.append(chunk)
    return parse_json(b"".join(chunks))


def parse_json(body: bytes) -> Any:
    """The value of a JSON text. Raises ApiError (400)."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _bad_json(f"it is not UTF-8: byte {error.object[error.start]:#04x} at offset {error.start}") from None
    if not text.strip():
        raise _bad_json("it is empty")
    try:
        value = json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_without_repeats
        )
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise _bad_json("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _bad_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeEncodeError:
        raise _bad_json("it has half of a surrogate pair in a string") from None
    except ValueError as error:
        raise _bad_json(str(error)) from None
    return value


async def _discard(request: Request, stream: AsyncIterator[bytes]) -> None:
    """Reads on, within bounds: most clients send everything before they look for an answer, and a connection closed
    meanwhile is all they would see. One that asked whether to send (`Expect`) has sent nothing.
    """
    if "expect" in request.headers:
        return
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            async for chunk in stream:
                size += len(chunk)
                if size > _DISCARD_BYTES:
                    return


def _check_media(request: Request) -> None:
    media = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        raise ApiError(
            415,
            f"the body must be JSON: send 'Content-Type: application/json', not '{media}'",
            code="unsupported_media_type",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(
            415, f"compressed bodies (Content-Encoding: {encoding}) are not taken", code="unsupported_media_type"
        )


def _too_large(max_bytes: int) -> ApiError:
    # Some of the body may be unread, so the connection cannot be used again.
    return ApiError(
        413,
        f"the request body is larger than {max_bytes} bytes, the limit of this server (max_request_bytes)",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def _bad_json(reason: str) -> ApiError:
    return ApiError(400, f"the request body is not valid JSON: {reason}", code="invalid_json")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key '{key[:80]}' appears twice in one object")
            seen.add(key)
    return value
