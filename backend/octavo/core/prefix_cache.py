"""Keys of the prefix cache: what a full KV block's content depends on, as one digest.

A block's KV depends on its own tokens, on everything before it (the parent's key stands for that), and on whatever
else changes the network's result or who may share it. Each such part is hashed with its kind and its length before
it, so no two kinds and no two splittings of the same bytes can collide.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import Enum
from hashlib import sha256


class Part(Enum):
    """Kinds of parts. A new kind needs a tag of its own, one byte, never reused."""

    PARENT = b"P"
    TOKENS = b"T"
    SALT = b"S"


def block_key(tokens: Sequence[int], parent: bytes | None, extra: Iterable[tuple[Part, bytes]] = ()) -> bytes:
    """The 32-byte key of a full block that holds `tokens` behind the blocks `parent` is the key of."""
    parts = [(Part.TOKENS, array("q", tokens).tobytes()), *extra]
    if parent is not None:
        parts.append((Part.PARENT, parent))
    return sha256(b"".join(piece for kind, payload in parts for piece in _framed(kind, payload))).digest()


def salt_parts(cache_salt: str | None) -> list[tuple[Part, bytes]]:
    """What a first block's key depends on beside its tokens; later blocks inherit it through their parent."""
    return [] if cache_salt is None else [(Part.SALT, cache_salt.encode("utf-8", "surrogatepass"))]


def _framed(kind: Part, payload: bytes) -> tuple[bytes, bytes, bytes]:
    return kind.value, len(payload).to_bytes(8, "little"), payload
