"""Server-sent events: `data: JSON` and an empty line."""

from __future__ import annotations

from typing import Any, Final

import msgspec

DONE: Final = b"data: [DONE]\n\n"
HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # nginx would collect the events before it passes them on.
    "X-Accel-Buffering": "no",
}

_encoder = msgspec.json.Encoder()
# Lawful in JSON and in an event, but many clients split lines where Unicode does.
_LINE_BREAKS: Final = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def event(payload: dict[str, Any]) -> bytes:
    """One event; `payload` is plain data, without infinities."""
    data = _encoder.encode(payload)
    if not data.isascii():
        for found, escaped in _LINE_BREAKS:
            if found in data:
                data = data.replace(found, escaped)
    return b"data: " + data + b"\n\n"
