"""ServerConfig: every knob of the HTTP server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from octavo.config import environment_values
from octavo.server.keys import check_key
from octavo.validation import Knobs

MiB = 1 << 20


class ServerConfig(Knobs):
    """Immutable HTTP server options.

    Raises:
        ConfigError: (a ValueError) an unknown name, a wrong type, or a value out of range.
    """

    noun: ClassVar[str] = "server option"

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 is every interface.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    api_key: list[str] = Field(
        default_factory=list,
        repr=False,
        description="Keys clients may authenticate with (also OCTAVO_API_KEY); none: no authentication. "
        "/health, /ready, /version and /metrics stay open.",
    )
    api_key_file: str | None = Field(None, description="File of more such keys, one a line, # before a comment.")
    isolate_api_keys: bool = Field(
        False, description="Requests with different keys never share prefix-cache blocks, so that none can time others."
    )
    admin_port: int | None = Field(
        None, ge=0, le=65535, description="Port for /metrics, probes and /debug; /metrics leaves the main port then."
    )
    admin_host: str = Field("127.0.0.1", description="Address that admin_port is opened on.")
    allowed_origins: list[str] = Field(
        default_factory=list, description="Web origins whose pages may call the server (CORS); * is any."
    )
    max_request_bytes: int = Field(16 * MiB, ge=1024, description="Largest request body, in bytes.")
    max_messages: int = Field(4096, ge=1, description="Most messages one chat request may have.")
    max_choices: int = Field(2048, ge=1, description="Most choices (prompts x n) one request may ask for.")
    access_log: bool = Field(False, description="Log a line for every request.")
    drain_timeout: float = Field(
        30.0, ge=0, le=3600, description="How long running requests may go on after the first SIGTERM or SIGINT."
    )
    keep_alive_seconds: int = Field(75, ge=1, le=3600, description="How long an idle connection is kept open.")

    @field_validator("api_key", "allowed_origins", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if value is None:
            return []
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _usable_keys(self) -> Self:
        # Checked here, not on the field: a field's error would quote the key.
        for key in self.api_key:
            try:
                check_key(key)
            except ValueError as error:
                raise ValueError(f"api_key: {error}") from None
        return self

    @property
    def wants_keys(self) -> bool:
        """Whether clients must bring a key."""
        return bool(self.api_key or self.api_key_file)

    @classmethod
    def from_sources(cls, *sources: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Self:
        """Merges `OCTAVO_<FIELD>` variables with `sources`; later ones win. Strings are coerced ("true", "2")."""
        merged = environment_values(cls, os.environ if environ is None else environ)
        for source in sources:
            merged.update(source)
        return cls(**merged)
