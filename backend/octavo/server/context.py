"""What every route needs: the engine, the options, and the checks that come before any work."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request

from octavo import __version__
from octavo.errors import RequestError
from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine

TIMEOUT_HEADER = "x-request-timeout"


@dataclass(frozen=True)
class Context:
    """One app's surroundings. `created` is when it was made, in seconds of the epoch: the model's creation date."""

    engine: AsyncEngine
    config: ServerConfig
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

    def check_accepting(self) -> None:
        """Raises ApiError (503) with the reason while the engine takes no requests, EngineOverloadedError while too
        many wait.

        While its core is being started again it does: they wait.
        """
        if self.engine.status().state != "recovering":
            self.check_ready()
        self.engine.check_accepting()

    def seconds(self, request: Request, timeout: float | None) -> float | None:
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

    def check_ready(self) -> None:
        """Raises ApiError (503) with the reason while requests are not taken, or would have to wait for a core."""
        status = self.engine.status()
        if status.state == "ready":
            return
        headers = {} if status.state == "dead" else {"Retry-After": "1"}
        raise ApiError(
            503, f"the engine is {status.state}: {status.reason}", code=_CODES[status.state], headers=headers
        )

    async def authorise(self, request: Request) -> None:
        """Raises ApiError (401) unless the request brings one of the keys, if there are any."""
        if not self.config.api_key:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        presented = given.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
        # Every key is compared, each in constant time: the answer's delay tells nothing of them.
        matches = [hmac.compare_digest(presented, key.encode()) for key in self.config.api_key]
        if not any(matches):
            problem = "wrong API key" if presented else "no API key: send the header 'Authorization: Bearer KEY'"
            raise ApiError(401, problem, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


_CODES = {
    "starting": "engine_starting",
    "recovering": "engine_recovering",
    "draining": "engine_draining",
    "dead": "engine_dead",
}
