"""Tokenizer: text to token ids and back, special tokens, and the chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend

from octavo.errors import RequestError
from octavo.model.loading.gguf_file import read_metadata
from octavo.model.loading.source import ModelSource
from octavo.text.chat_template import ChatTemplate, Message
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.directory_tokenizer import build_directory_tokenizer
from octavo.text.gguf_tokenizer import build_gguf_tokenizer
from octavo.text.vocabulary import Vocabulary


class Tokenizer:
    """A model's tokenizer, whatever file it came from.

    Args:
        backend: the tokenizers library's; its post-processor adds what `add_special_tokens` asks for.
        specials: special tokens by the name templates know them by.
        chat_template: None if the model has none.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        specials: Mapping[str, str],
        bos_token_id: int | None,
        eos_token_id: int | None,
        chat_template: ChatTemplate | None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._specials = dict(specials)
        self._chat_template = chat_template
        self.vocabulary = Vocabulary(backend)
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(
        cls, source: ModelSource, *, trust_remote_code: bool = False, chat_template: str | None = None
    ) -> Tokenizer:
        """The tokenizer of a model.

        Args:
            chat_template: a file, or a template's text, to use instead of the model's own.

        Raises:
            ConfigError: there is no tokenizer, or none octavo can use.
        """
        override = ChatTemplate.from_option(chat_template) if chat_template is not None else None
        if source.kind == "gguf":
            parts = build_gguf_tokenizer(read_metadata(source.path))
        else:
            parts = build_directory_tokenizer(source.path, trust_remote_code=trust_remote_code)
        return cls(
            parts.backend,
            specials=parts.specials,
            bos_token_id=parts.bos_token_id,
            eos_token_id=parts.eos_token_id,
            chat_template=override or (ChatTemplate(parts.chat_template) if parts.chat_template else None),
        )

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens written in it count as such.

        Args:
            add_special_tokens: also add what the model wants around every text, such as a beginning-of-text token.

        Raises:
            RequestError: the text has lone surrogates, which no bytes stand for.
        """
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:
            # What the library says of a string that it cannot turn into UTF-8.
            place = next((i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff"), 0)
            raise RequestError(
                f"the text is not valid Unicode: a lone surrogate at character {place}", "prompt"
            ) from None
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids, from its beginning.

        Raises:
            RequestError: an id is out of range.
        """
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise RequestError(
                    f"token id {token_id} is out of range: this tokenizer knows 0 to {self.vocab_size - 1}", "tokens"
                )
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        text = detokenizer.push(list(token_ids)) + detokenizer.flush()
        return text.removeprefix(" ") if self.vocabulary.strips_leading_space else text

    def detokenizer(self, *, skip_special_tokens: bool) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self.vocabulary, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self.vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """The token alone as text; U+FFFD where it holds a part of a character."""
        return self.vocabulary.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in self.vocabulary.special_ids

    def bad_word_ids(self, words: Sequence[str]) -> list[list[int]]:
        """Token ids of each word as it stands at a beginning, and as it stands after a space."""
        found: list[list[int]] = []
        for word in words:
            bare = self.encode(word.lstrip(), add_special_tokens=False)
            spaced = self.encode(" " + word.lstrip(), add_special_tokens=False)
            found.extend(ids for ids in (bare, spaced) if ids and ids not in found)
        return found

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as the model's template writes it, special tokens included.

        Raises:
            RequestError: there is no template, or it refuses the messages.
        """
        if self._chat_template is None:
            raise RequestError(
                "this model has no chat template: send a plain prompt, or serve it with chat_template", "messages"
            )
        return self._chat_template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            special_tokens=self._specials,
            variables=template_kwargs or {},
        )
