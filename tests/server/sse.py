"""Reads event streams in tests."""

from __future__ import annotations

import json
from typing import Any


def parse(body: str) -> tuple[list[dict[str, Any]], bool]:
    """(the events' JSON, whether `[DONE]` came last)."""
    assert body.endswith("\n\n")
    blocks = body.removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("data: ") for block in blocks)
    payloads = [block.removeprefix("data: ") for block in blocks]
    done = payloads[-1] == "[DONE]"
    if done:
        payloads.pop()
    return [json.loads(payload) for payload in payloads], done
