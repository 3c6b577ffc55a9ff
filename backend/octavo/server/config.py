"""ServerConfig: every knob of the HTTP server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from octavo.config import environment_values
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
    allowed_origins: list[str] = Field(
        default_factory=list, description="Web origins whose pages may call the server (CORS); * is any."
    )
    max_request_bytes: int = Field(16 * MiB, ge=1024, description="Largest request body, in bytes.")
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
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise ValueError("api_key: a key has at least one character, all printable ASCII without spaces")
        return self

    @classmethod
    def from_sources(cls, *sources: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Self:
        """Merges `OCTAVO_<FIELD>` variables with `sources`; later ones win. Strings are coerced ("true", "2")."""
        merged = environment_values(cls, os.environ if environ is None else environ)
        for source in sources:
            merged.update(source)
        return cls(**merged)
