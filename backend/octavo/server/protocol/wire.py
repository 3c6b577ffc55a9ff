"""Wire: base of the request models. Types are not coerced, and what is not understood is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from octavo.errors import RequestError, nearest

_MAX_SHOWN: Final = 80


class Wire(BaseModel):
    """A JSON object of a request.

    Attributes:
        unsupported: fields of OpenAI's API that octavo does not have, each with the values that ask for nothing and
            are therefore taken. null always is.
        nested: fields whose value is another Wire, or a list of them.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), frozen=True)

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    nested: ClassVar[Mapping[str, type[Wire]]] = {}

    @classmethod
    def parse(cls, body: Any) -> Self:
        """Raises RequestError naming the first field at fault."""
        if not isinstance(body, dict):
            raise RequestError(f"the request body must be a JSON object, not {_json_type(body)}", code="invalid_type")
        try:
            return cls.model_validate(body)
        except ValidationError as report:
            raise _request_error(cls, report.errors(include_url=False)[0]) from None

    @model_validator(mode="before")
    @classmethod
    def _without_unsupported(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kept = dict(value)
        for name, harmless in cls.unsupported.items():
            given = kept.pop(name, None)
            if given is None or any(type(given) is type(allowed) and given == allowed for allowed in harmless):
                continue
            if harmless:
                allowed = " or ".join(map(_shown, harmless))
                raise refusal(f"only {allowed} is supported here, got {_shown(given)}", name, "unsupported_value")
            raise refusal("not supported by this server, leave it out", name, "unsupported_parameter")
        return kept


def refusal(reason: str, param: str | None = None, code: str = "invalid_value") -> PydanticCustomError:
    """What a validator raises to choose the code, or to name a field: of the model, if it is the model's validator."""
    return PydanticCustomError("refusal", "{reason}", {"reason": reason, "param": param, "code": code})


def _request_error(kind: type[Wire], fault: ErrorDetails) -> RequestError:
    location = [part for part in fault["loc"] if not str(part).startswith("function-")]
    param = _path(location)
    match fault["type"]:
        case "extra_forbidden":
            name = str(location[-1])
            holder = kind
            for part in location[:-1]:
                holder = holder.nested.get(str(part), holder)
            known = [*holder.model_fields, *holder.unsupported]
            return RequestError(f"unknown parameter '{param}'{nearest(name, known)}", param, "unknown_parameter")
        case "missing":
            return RequestError(f"'{param}' is required", param, "missing_required_parameter")
        case "refusal":
            context = fault["ctx"]
            if context["param"] is not None:
                param = _path([*location, context["param"]])
            return RequestError(f"{param}: {context['reason']}", param, context["code"])
    reason = fault["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    code = "invalid_type" if fault["type"].endswith(("_type", "_unicode")) else "invalid_value"
    return RequestError(f"{param}: {reason}, got {_shown(fault['input'])}", param, code)


def _path(location: list[int | str]) -> str:
    """`messages[0].content`, as OpenAI writes it."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _shown(value: object) -> str:
    # repr of a huge number or text is cut before it is built: an error must not cost more than the request.
    if isinstance(value, str) and len(value) > _MAX_SHOWN:
        return repr(value[: _MAX_SHOWN - 3]) + "..."
    if isinstance(value, list | dict):
        return f"{_json_type(value)} of {len(value)}"
    text = "null" if value is None else repr(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _json_type(value: object) -> str:
    names: dict[type, str] = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")
