"""What every route needs: the engine, the options, and the checks that come before any work."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from fastapi import Request

from octavo import __version__
from octavo.errors import RequestError
from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError
from octavo.server.keys import ApiKeys, bearer
from octavo.server.readiness import check_ready

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine
    from octavo.server.protocol.generation import GenerationRequest

TIMEOUT_HEADER = "x-request-timeout"
_TRACE_HEADERS = ("traceparent", "tracestate")


class Options(TypedDict):
    """Keywords of `AsyncEngine.generate`."""

    priority: int
    cache_salt: str | None
    timeout: float | None
    trace_headers: Mapping[str, str]


@dataclass(frozen=True)
class Context:
    """One app's surroundings. `created` is when it was made, in seconds of the epoch: the model's creation date."""

    engine: AsyncEngine
    config: ServerConfig
    keys: ApiKeys
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model_name(self) -> str:
        """The name answers carry."""
        return self.engine.config.model_name

    @property
    def fingerprint(self) -> str:
        """OpenAI's `system_fingerprint`: equal for equal software, model and numerics."""
        options = self.engine.config
        parts = (__version__, options.model, str(options.revision), options.dtype, options.quantization)
        return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]

    def check_model(self, name: str | None) -> None:
        """Raises ApiError (404) for a model that is not served; None is whichever is."""
        names = self.engine.config.model_names
        if name is not None and name not in names:
            known = "', '".join(names)
            raise ApiError(
                404,
                f"the model '{name[:200]}' does not exist; this server has '{known}'",
                param="model",
                code="model_not_found",
            )

    def check_running(self) -> None:
        """Raises ApiError (503) with the reason while the engine takes no requests.

        While its core is being started again it does: they wait.
        """
        if self.engine.status().state != "recovering":
            check_ready(self.engine)

    def check_accepting(self) -> None:
        """Raises as `check_running` does, and EngineOverloadedError while too many wait."""
        self.check_running()
        self.engine.check_accepting()

    def check_messages(self, count: int) -> None:
        """Raises RequestError for more messages than one request may have."""
        if count > self.config.max_messages:
            raise RequestError(
                f"{count} messages are above the {self.config.max_messages} that one request may have (max_messages)",
                "messages",
                "invalid_value",
            )

    def options(self, request: Request, asked: GenerationRequest) -> Options:
        """What `AsyncEngine.generate` is told beside the prompt and the parameters. Raises RequestError."""
        return Options(
            priority=asked.priority or 0,
            cache_salt=self._cache_salt(request, asked.cache_salt),
            timeout=self._seconds(request, asked.timeout),
            trace_headers={name: request.headers[name] for name in _TRACE_HEADERS if name in request.headers},
        )

    def _seconds(self, request: Request, timeout: float | None) -> float | None:
        """How long a request may take: its `timeout` field, else its header `x-request-timeout`, else None.

        Raises RequestError for a header that is no positive number.
        """
        given = request.headers.get(TIMEOUT_HEADER)
        if timeout is not None or given is None:
            return timeout
        try:
            seconds = float(given)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise RequestError(
                f"the header {TIMEOUT_HEADER} is '{given[:40]}'; it is a positive number of seconds",
                TIMEOUT_HEADER,
                "invalid_value",
            )
        return seconds

    async def authorise(self, request: Request) -> None:
        """Raises ApiError (401) unless the request brings one of the keys, if there are any."""
        if not self.keys:
            return
        given = request.headers.get("authorization", "")
        if not self.keys.match(given):
            problem = "wrong API key" if bearer(given) else "no API key: send the header 'Authorization: Bearer KEY'"
            raise ApiError(401, problem, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def _cache_salt(self, request: Request, salt: str | None) -> str | None:
        """The prefix-cache salt of a request: its own, and its key's where keys are isolated."""
        if not self.config.isolate_api_keys:
            return salt
        return self.keys.salt(request.headers.get("authorization", ""), salt)
