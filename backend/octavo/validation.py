"""One way to validate knobs, whatever they come from: keywords, JSON, flags or environment.

pydantic checks types and ranges; this turns its report into one sentence that names the field, the value, the
limit and, for an unknown name, the nearest known one.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from octavo.errors import ConfigError, RequestError, nearest

_MAX_SHOWN = 80


class _ErrorFactory(Protocol):
    def __call__(self, message: str, param: str | None = None) -> ConfigError | RequestError: ...


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def describe(error: ValidationError, known: list[str], noun: str) -> tuple[str, str | None]:
    """The first fault of a pydantic report as (message, field)."""
    fault = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in fault["loc"] if not str(part).startswith("function-"))
    if fault["type"] == "extra_forbidden":
        name = str(fault["loc"][-1])
        return f"unknown {noun} '{name}'{nearest(name, known)}", path
    if fault["type"] == "missing":
        return f"{noun} '{path}' is required", path
    reason = fault["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    if not path:
        return reason, None
    return f"{path}: {reason}, got {_shown(fault['input'])}", fault["loc"][0] if isinstance(
        fault["loc"][0], str
    ) else path


class Knobs(BaseModel):
    """Base of the immutable option sets. A bad value raises the class's own `error` instead of pydantic's."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    error: ClassVar[_ErrorFactory] = ConfigError
    noun: ClassVar[str] = "option"

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as report:
            message, param = describe(report, list(type(self).model_fields), self.noun)
            raise self.error(message, param) from None
