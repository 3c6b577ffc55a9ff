"""ApiKeys: who may ask. Keys come from flags, the environment or a file, and are shown to nobody."""

from __future__ import annotations

import hashlib
import hmac
import logging
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from octavo.errors import ConfigError

logger = logging.getLogger("octavo.server")


def check_key(key: str) -> None:
    """Raises ValueError, which does not quote the key, if no header could carry it."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("a key has at least one character, all printable ASCII without spaces")


def read_key_file(path: str) -> list[str]:
    """One key a line; empty lines and lines that begin with # are none.

    Raises:
        ConfigError: the file cannot be read, has no key, or a line that can be none.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"api_key_file: cannot read '{path}': {reason}", "api_key_file") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        logger.warning("the API key file '%s' can be read by others than its owner: chmod 600 it", path)
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        try:
            check_key(key)
        except ValueError as error:
            raise ConfigError(f"api_key_file: line {number} of '{path}': {error}", "api_key_file") from None
        keys.append(key)
    if not keys:
        raise ConfigError(f"api_key_file: '{path}' has no key; write one a line", "api_key_file")
    return keys


class ApiKeys:
    """
    Args:
        keys: none: everybody may ask.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    @classmethod
    def load(cls, keys: Iterable[str], path: str | None) -> Self:
        """Those given, and those in the file. Raises ConfigError as `read_key_file` does."""
        return cls([*keys, *(read_key_file(path) if path is not None else ())])

    def __bool__(self) -> bool:
        return bool(self._keys)

    def match(self, authorization: str) -> bool:
        """Whether a header `Authorization: Bearer KEY` brings one of the keys."""
        presented = bearer(authorization)
        # Every key is compared, each in constant time: the answer's delay tells nothing of them.
        matches = [hmac.compare_digest(presented, key) for key in self._keys]
        return any(matches)

    @staticmethod
    def salt(authorization: str, salt: str | None) -> str:
        """A prefix-cache salt that only holders of the same key, with the same `salt` of their own, come to."""
        own = b"" if salt is None else b"salt:" + salt.encode("utf-8", "surrogatepass")
        return hmac.digest(bearer(authorization), b"octavo prefix cache\0" + own, hashlib.sha256).hex()


def bearer(authorization: str) -> bytes:
    """The key in the header, or nothing."""
    scheme, _, given = authorization.partition(" ")
    return given.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
