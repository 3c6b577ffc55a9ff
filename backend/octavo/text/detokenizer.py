"""IncrementalDetokenizer: tokens in, text out, as soon as it is certain."""

from __future__ import annotations

import codecs

from octavo.text.vocabulary import Vocabulary

_UTF8 = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Turns a sequence's tokens into text, a step at a time.

    What `push` and `flush` give, joined, is the tokens' bytes decoded as UTF-8, with U+FFFD for what is invalid: the
    same however the bytes fall into tokens and the tokens into steps. A character that is not complete is held back, so
    a replacement character given out never turns into something else later. A leading space is kept: the text
    continues a prompt.

    Args:
        skip_special_tokens: leave special tokens out of the text.
    """

    __slots__ = ("_decoder", "_skipped", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, *, skip_special_tokens: bool) -> None:
        self._vocabulary = vocabulary
        self._skipped = vocabulary.special_ids if skip_special_tokens else frozenset()
        self._decoder = _UTF8("replace")

    def push(self, token_ids: list[int]) -> str:
        """The text that is certain now and was not before."""
        text = ""
        for token_id in token_ids:
            if token_id not in self._skipped:
                text += self._decoder.decode(self._vocabulary.token_bytes(token_id))
        return text

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", True)
