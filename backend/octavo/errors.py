"""Every error a caller can meet. One cause, one sentence that says what to do, the same text on every front."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OctavoError(Exception):
    """Base of all of octavo's own errors."""


class ConfigError(OctavoError, ValueError):
    """An engine or server knob is unknown, of the wrong type, out of range, or contradicts another.

    `param` names the knob where one is to blame.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ModelNotFoundError(ConfigError):
    """A model reference leads nowhere; the message says where it looked."""


class UnsupportedModelError(ConfigError):
    """The model exists but octavo cannot run it; the message names what it can run."""


class RequestError(OctavoError, ValueError):
    """One request is wrong: a bad parameter, a prompt that cannot fit. Harms no other request.

    Args:
        message: what is wrong, with the value and the limit.
        param: the request's field to blame, as the caller spells it.
        code: a short machine-readable reason, e.g. `context_length_exceeded`.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class EngineDeadError(OctavoError, RuntimeError):
    """The engine core is gone; the request in flight failed and new ones are refused."""


class RequestCrashError(OctavoError, RuntimeError):
    """The request ended the engine's core whenever it ran, and is not tried again. Others go on."""


class EngineStoppedError(OctavoError, RuntimeError):
    """The engine is draining or has been shut down; it takes no new requests."""


class EngineOverloadedError(OctavoError, RuntimeError):
    """So much waits already that the request is not taken.

    Args:
        retry_after: seconds after which it may fare better.
    """

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class RequestTimeoutError(OctavoError, TimeoutError):
    """The request did not end within its time, waiting included; it was aborted."""


class DeviceMemoryError(OctavoError, MemoryError):
    """The device has not enough memory for a step; nothing of the step counts."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint `; did you mean 'x'?` for a misspelt name, or an empty string if nothing is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
