"""Logprobs in the shapes of the two endpoints."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo.outputs import Logprob

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

Position = dict[int, Logprob]

# OpenAI's stand-in for "very unlikely"; JSON has no infinity.
_FLOOR = -9999.0


def _value(entry: Logprob) -> float:
    return entry.logprob if entry.logprob > _FLOOR else _FLOOR


def _escaped(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


def _bytes_of(entry: Logprob) -> bytes | None:
    if entry.token_bytes is not None:
        return entry.token_bytes
    return entry.decoded_token.encode() if entry.decoded_token is not None else None


def token_name(token_id: int, entry: Logprob, prefix: str = "") -> str:
    """The token's text; for bytes that are no text by themselves `prefix` and `\\xf0\\x9f`, as OpenAI shows them.

    An id without text (no tokenizer, or padding of the vocabulary) is shown as `token_id:5`.
    """
    data = _bytes_of(entry)
    if not data:
        return f"token_id:{token_id}"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return prefix + _escaped(data)


def _by_rank(position: Position) -> list[tuple[int, Logprob]]:
    return sorted(position.items(), key=lambda item: item[1].rank)


def chat_logprob(position: Position, num_top: int) -> dict[str, Any]:
    """One element of chat's `logprobs.content`: the chosen token, and the `num_top` likeliest."""
    chosen_id, chosen = next(iter(position.items()))
    shown = _chat_token(chosen_id, chosen)
    shown["top_logprobs"] = [_chat_token(*item) for item in _by_rank(position)[:num_top]] if num_top else []
    return shown


def _chat_token(token_id: int, entry: Logprob) -> dict[str, Any]:
    data = _bytes_of(entry)
    return {
        "token": token_name(token_id, entry),
        "logprob": _value(entry),
        "bytes": list(data) if data is not None else None,
    }


class CompletionLogprobs:
    """The parallel arrays of /v1/completions, for one choice, in pieces or whole.

    `text_offset` counts characters of the choice's text, echoed prompt included. A token's place is that of its first
    byte's character; special tokens that are not shown take no room.
    """

    def __init__(self, num_top: int, tokenizer: Tokenizer | None, skip_special_tokens: bool) -> None:
        self._num_top = num_top
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def echoed(self, text: str, token_ids: Sequence[int], positions: Sequence[Position | None]) -> dict[str, Any]:
        """The prompt's share. Nothing precedes its first token, which has null for logprobs."""
        shown = _empty()
        for token_id, position in zip(token_ids, positions, strict=True):
            entry = position[token_id] if position is not None else self._unscored(token_id)
            self._append(shown, token_id, entry, position)
            piece = self._decoder.decode(_bytes_of(entry) or b"")
            # The text is known: match it, for tokenizers add special tokens and drop a leading space.
            for candidate in (piece, piece.lstrip(" ")):
                if text.startswith(candidate, self._offset):
                    self._offset += len(candidate)
                    break
        self._offset = len(text)
        self._decoder.reset()
        return shown

    def generated(self, token_ids: Sequence[int], positions: Sequence[Position]) -> dict[str, Any]:
        """The share of newly generated tokens."""
        shown = _empty()
        for token_id, position in zip(token_ids, positions, strict=True):
            entry = position[token_id]
            data = b"" if self._hidden(token_id) else _bytes_of(entry) or b""
            if self._gives_up_a_character(data):
                self._offset += len(self._decoder.decode(b"", final=True))
            self._append(shown, token_id, entry, position)
            self._offset += len(self._decoder.decode(data))
        return shown

    def _gives_up_a_character(self, data: bytes) -> bool:
        """Whether tokens before began a character that `data` doesn't go on with: U+FFFD stands for it in the text."""
        return bool(self._decoder.getstate()[0] and data) and not 0x80 <= data[0] < 0xC0

    def _append(self, shown: dict[str, Any], token_id: int, entry: Logprob, position: Position | None) -> None:
        shown["tokens"].append(token_name(token_id, entry, "bytes:"))
        shown["text_offset"].append(self._offset)
        shown["token_logprobs"].append(_value(entry) if position is not None else None)
        shown["top_logprobs"].append(self._top(token_id, position) if position is not None else None)

    def _top(self, chosen_id: int, position: Position) -> dict[str, float]:
        """The likeliest tokens, and the chosen one after them if it is not among them."""
        ranked = _by_rank(position)
        kept = ranked[: self._num_top]
        if all(token_id != chosen_id for token_id, _ in kept):
            kept.append((chosen_id, position[chosen_id]))
        top: dict[str, float] = {}
        for token_id, entry in kept:
            top.setdefault(token_name(token_id, entry, "bytes:"), _value(entry))
        return top

    def _unscored(self, token_id: int) -> Logprob:
        if self._tokenizer is None:
            return Logprob(0.0, 1)
        return Logprob(0.0, 1, self._tokenizer.token_text(token_id), self._tokenizer.token_bytes(token_id))

    def _hidden(self, token_id: int) -> bool:
        return self._skip_special_tokens and self._tokenizer is not None and self._tokenizer.is_special(token_id)


def _empty() -> dict[str, Any]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def joined(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """The arrays of two successive shares as one."""
    return {key: earlier[key] + later[key] for key in earlier}
