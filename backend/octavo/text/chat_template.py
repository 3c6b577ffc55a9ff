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

_RESERVED = ("messages", "add_generation_prompt")
# Stands where the model goes on. The space tells whether the template strips what it is given.
_MARK = "\ue000the model goes on here\ue000 "
_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, with which templates mark what the assistant wrote; it changes nothing in the text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads it from the class

    def parse(self, stream: parser.Parser) -> list[nodes.Node]:
        next(stream.stream)
        return stream.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A Jinja template, in the sandboxed environment that templates of the hub are written for.

    A message's content is text or a list of parts. It is given to the template in the form that the template can take:
    parts to one that goes through them in a loop, text (parts joined by newlines) to any other.

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
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template is not valid: {error}", "chat_template") from None
        self._takes_parts = _loops_over_content(tree)
        self._takes_text = not self._takes_parts or any(test.name == "string" for test in tree.find_all(nodes.Test))

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
        for name in _RESERVED:
            if name in variables:
                raise RequestError(
                    f"chat_template_kwargs: '{name}' is not a variable to set here", "chat_template_kwargs"
                )
        given = [self._shaped(message) for message in messages]
        if continue_final_message:
            given[-1] = _marked(given[-1])
        # Templates test these for none as often as for being defined.
        known = {"tools": None, "documents": None, **special_tokens, **variables}
        try:
            text = self._template.render(messages=given, add_generation_prompt=add_generation_prompt, **known)
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the messages are not valid Unicode: a lone surrogate {error.object[error.start]!r}", "messages"
            ) from None
        except _FAULTS as error:
            raise RequestError(f"the chat template refuses the messages: {error}", "messages") from None
        return _cut_at_mark(text) if continue_final_message else text

    def _shaped(self, message: Message) -> dict[str, Any]:
        """A copy of the message, its content in a form that the template takes."""
        content = message.get("content")
        if isinstance(content, list) and not self._takes_parts:
            return {**message, "content": "\n".join(_part_text(part) for part in content)}
        if isinstance(content, str) and not self._takes_text:
            return {**message, "content": [{"type": "text", "text": content}]}
        return dict(message)


def _to_json(value: Any, **options: Any) -> str:
    """As JSON without HTML escaping, which jinja2's own filter adds."""
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether the template goes through a message's content part by part.

    Calls don't count: a loop over `content.split(...)` takes text.
    """
    # A macro's parameter that is called so holds just that.
    names = {"content"}

    def is_content(node: nodes.Node | None) -> bool:
        match node:
            case nodes.Getattr(attr="content") | nodes.Getitem(arg=nodes.Const(value="content")):
                return True
            case nodes.Name(name=name):
                return name in names
            case nodes.Filter(node=inner) | nodes.Getitem(node=inner, arg=nodes.Slice()):
                return is_content(inner)
            case nodes.CondExpr(expr1=one, expr2=other):
                return is_content(one) or is_content(other)
        return False

    for node in tree.find_all(nodes.Assign):
        if isinstance(node.target, nodes.Name) and is_content(node.node):
            names.add(node.target.name)
    return any(is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise RequestError(f"this model reads text only, and the messages have a content part of type '{kind}'", "messages")


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the mark at the end of its text."""
    content = message.get("content")
    if isinstance(content, str) and content:
        return {**message, "content": content + _MARK}
    if isinstance(content, list) and content and isinstance(content[-1], Mapping) and content[-1].get("text"):
        return {**message, "content": [*content[:-1], {**content[-1], "text": content[-1]["text"] + _MARK}]}
    raise RequestError("continue_final_message: the last message has no text to continue", "continue_final_message")


def _cut_at_mark(text: str) -> str:
    before, mark, after = text.rpartition(_MARK.rstrip())
    if not mark:
        raise RequestError(
            "continue_final_message: the chat template does not show the last message's content as it is, so it cannot "
            "be continued",
            "continue_final_message",
        )
    # A template that strips content would have stripped the message's own white space.
    return before if after.startswith(" ") else before.rstrip()
