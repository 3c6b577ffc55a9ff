"""TokenizerParts: what a tokenizer is made of, whatever file it was read from."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer as Backend
from tokenizers import processors


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """`specials` are the tokens chat templates may write, by name (`bos_token`, ...)."""

    backend: Backend
    specials: dict[str, str]
    bos_token_id: int | None
    eos_token_id: int | None
    chat_template: str | None


def surround(backend: Backend, begin: int | None, end: int | None) -> None:
    """Makes `encode` put these tokens around every text when asked for special tokens; None puts nothing there."""
    given = [(name, token_id) for name, token_id in (("begin", begin), ("end", end)) if token_id is not None]
    single = ["begin"] * (begin is not None) + ["$A"] + ["end"] * (end is not None)
    backend.post_processor = processors.TemplateProcessing(single=single, pair=[*single, "$B"], special_tokens=given)
