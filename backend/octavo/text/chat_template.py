"""ChatTemplate: a conversation as the model was taught to read it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes, parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import ConfigError, RequestError

Message = Mapping[str, Any]


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, with which templates mark what the assistant wrote; it changes nothing in the text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads it from the class

    def parse(self, stream: parser.Parser) -> list[nodes.Node]:
        next(stream.stream)
        return stream.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A Jinja template, in the sandboxed environment that templates of the hub are written for.

    Args:
        source: the template's text.

    Raises:
        ConfigError: it is not a valid template.
    """

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template is not valid: {error}", "chat_template") from None
        # A template that never looks into content as a list wants it as text.
        self._takes_parts = "content" in source and any(
            mark in source for mark in ("['type']", '["type"]', ".type", "is string", "content is iterable")
        )

    @classmethod
    def from_option(cls, option: str) -> ChatTemplate:
        """From a file's name, or from the template itself."""
        if "{" in option or "\n" in option:
            return cls(option)
        path = Path(option)
        try:
            return cls(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"chat template '{option}' cannot be read: {error}", "chat_template") from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        special_tokens: Mapping[str, str],
        variables: Mapping[str, Any],
    ) -> str:
        """The conversation as text.

        Args:
            continue_final_message: end inside the last message, so that the model goes on with it.
            special_tokens: `bos_token` and its like, for the template to write.
            variables: whatever else the template knows.

        Raises:
            RequestError: the messages are not what the template takes; its own words where it has any.
        """
        if not messages:
            raise RequestError("messages is empty: a conversation has at least one message", "messages")
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other: set one to false",
                "continue_final_message",
            )
        given = [dict(message) if self._takes_parts else _flattened(message) for message in messages]
        try:
            text = self._template.render(
                messages=given, add_generation_prompt=add_generation_prompt, **{**special_tokens, **variables}
            )
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            IndexError,
            RecursionError,
        ) as error:
            raise RequestError(f"the chat template refuses the messages: {error}", "messages") from None
        return _cut_after(text, _flattened(messages[-1])) if continue_final_message else text


def _to_json(value: Any, **options: Any) -> str:
    """As JSON without HTML escaping, which jinja2's own filter adds."""
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _flattened(message: Message) -> dict[str, Any]:
    """The message with its text parts joined into one string."""
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    texts = [part.get("text", "") if isinstance(part, Mapping) else str(part) for part in content]
    return {**message, "content": "\n".join(texts)}


def _cut_after(text: str, message: Message) -> str:
    content = str(message.get("content") or "").strip()
    place = text.rfind(content)
    if not content or place < 0:
        raise RequestError(
            "continue_final_message: the chat template does not show the last message's content as it is, so it cannot "
            "be continued",
            "continue_final_message",
        )
    return text[: place + len(content)]
