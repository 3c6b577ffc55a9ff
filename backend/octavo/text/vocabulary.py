"""Vocabulary: each token's exact bytes, from which all text is made."""

from __future__ import annotations

import json
from typing import Literal

from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from octavo.errors import ConfigError

Scheme = Literal["byte_level", "sentencepiece"]

_SPACE = "▁"


def _byte_level_table() -> dict[str, int]:
    """Character -> byte of the byte-level alphabet of GPT-2 (Radford et al., 2019): printable bytes stand for
    themselves, the rest for characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(256) if chr(byte) not in table]
    table |= {chr(0x100 + place): byte for place, byte in enumerate(rest)}
    if set(table) != set(pre_tokenizers.ByteLevel.alphabet()):
        raise RuntimeError("the byte-level alphabet is not the one the tokenizers library uses")
    return table


class Vocabulary:
    """Token id -> bytes, for the two schemes in which a text is its tokens' bytes joined: byte-level BPE, and
    SentencePiece with byte fallback.

    Raises:
        ConfigError: the tokenizer writes text in another way.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.scheme, self.strips_leading_space = _scheme_of(backend)
        self._table = _byte_level_table() if self.scheme == "byte_level" else {}
        self._bytes: dict[int, bytes] = {}
        added = backend.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    def token_bytes(self, token_id: int) -> bytes:
        """The token's bytes; none for an id that the tokenizer lacks (models pad their vocabularies)."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._find(token_id)
        return known

    def _find(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode("utf-8", "surrogatepass")
        piece = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        if self.scheme == "byte_level":
            if all(character in self._table for character in piece):
                return bytes(self._table[character] for character in piece)
            return piece.encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            try:
                return bytes([int(piece[3:5], 16)])
            except ValueError:
                return piece.encode()
        return piece.replace(_SPACE, " ").encode()


def _scheme_of(backend: Backend) -> tuple[Scheme, bool]:
    """The scheme, and whether a text decoded from its very beginning loses one leading space."""
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else None
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return "byte_level", False
    if "Metaspace" in kinds:
        step = steps[kinds.index("Metaspace")]
        return "sentencepiece", step.get("prepend_scheme") != "never"
    if "ByteFallback" in kinds:
        return "sentencepiece", any(step["type"] == "Strip" and step.get("start", 0) > 0 for step in steps)
    raise ConfigError(
        f"the tokenizer's decoder ({'+'.join(kinds) or 'none'}) is of a kind octavo does not know; byte-level BPE and "
        "SentencePiece with byte fallback are supported",
        "tokenizer",
    )
