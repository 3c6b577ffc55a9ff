"""Chat templates: what they may use, the form their messages take, and how they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ConfigError, RequestError
from octavo.model.loading.source import resolve_model
from octavo.text.chat_template import ChatTemplate
from octavo.text.tokenizer import Tokenizer
from tests.tiny import CHAT_TEMPLATE, build_tokenizer

MESSAGES = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "?"},
]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
TEXT = [{"role": "user", "content": "a"}]
LOOP = "{% for part in CONTENT %}[{{ part['type'] }}:{{ part['text'] }}]{% endfor %}"


def templated(template: str | None) -> Tokenizer:
    return Tokenizer(
        build_tokenizer(),
        specials={"bos_token": "<s>", "eos_token": "</s>"},
        bos_token_id=None,
        eos_token_id=2,
        chat_template=ChatTemplate(template) if template is not None else None,
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0]['content'] }}",
        "{{ messages[0].content | trim }}",
        # Llama 3.1's, for tools: it asks whether content is iterable, and goes through none.
        "{% set m = messages[0] %}{% if m is mapping or m.content is iterable %}{{ m.content | trim }}{% endif %}",
        "{% for line in messages[0].content.split('\\n') %}{{ line if loop.first else '\\n' + line }}{% endfor %}",
        "{% for call in messages[0].tool_calls if call.type == 'function' %}{% endfor %}{{ messages[0].content }}",
    ],
)
def test_parts_become_text_for_templates_that_take_text(template: str) -> None:
    """A template that only mentions `.type` or `is iterable` was given the list, and wrote it out as Python does."""
    assert templated(template).render_chat(PARTS) == "a\nb"
    assert templated(template).render_chat(TEXT) == "a"


@pytest.mark.parametrize(
    "template",
    [
        LOOP.replace("CONTENT", "messages[0]['content']"),
        LOOP.replace("CONTENT", "messages[0].content | selectattr('type', 'equalto', 'text')"),
        LOOP.replace("CONTENT", "messages[0].content[:9]"),
        "{% set given = messages[0]['content'] %}" + LOOP.replace("CONTENT", "given"),
        "{% macro show(content) %}"
        + LOOP.replace("CONTENT", "content")
        + "{% endmacro %}{{ show(messages[0].content) }}",
    ],
)
def test_parts_stay_parts_for_templates_that_go_through_them(template: str) -> None:
    assert templated(template).render_chat(PARTS) == "[text:a][text:b]"
    # And text becomes a part, or the loop would go through its letters.
    assert templated(template).render_chat(TEXT) == "[text:a]"


def test_a_template_that_takes_both_gets_what_came() -> None:
    template = (
        "{% if messages[0].content is string %}{{ messages[0].content }}{% else %}"
        + LOOP.replace("CONTENT", "messages[0].content")
        + "{% endif %}"
    )
    assert templated(template).render_chat(TEXT) == "a"
    assert templated(template).render_chat(PARTS) == "[text:a][text:b]"


def test_a_part_that_is_no_text_is_refused() -> None:
    """It was left out in silence."""
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(RequestError, match="image_url"):
        templated(CHAT_TEMPLATE).render_chat(picture)


def test_what_templates_may_use() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}{{ {'a': '<&>'} | tojson }}{{ mood }}"
    )
    text = templated(template).render_chat(MESSAGES, template_kwargs={"mood": "calm"})
    assert text == '<s>Hi{"a": "<&>"}calm'


def test_variables_that_are_not_given_are_none() -> None:
    assert templated("{{ tools is none }}{{ documents is none }}").render_chat(TEXT) == "TrueTrue"
    assert templated("{{ tools }}").render_chat(TEXT, template_kwargs={"tools": "t"}) == "t"


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt"])
def test_variables_that_are_not_to_be_set(name: str) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        templated(CHAT_TEMPLATE).render_chat(TEXT, template_kwargs={name: 1})
    assert caught.value.param == "chat_template_kwargs"


def continued(template: str, content: Any) -> str:
    messages = [*MESSAGES[:1], {"role": "assistant", "content": content}]
    return templated(template).render_chat(messages, add_generation_prompt=False, continue_final_message=True)


def test_continue_final_message() -> None:
    assert continued(CHAT_TEMPLATE, "Once upon").endswith("<|im_start|>assistant\nOnce upon")
    # Content that the template's own text repeats after it, and white space at the end.
    assert continued(CHAT_TEMPLATE, "end ").endswith("<|im_start|>assistant\nend ")
    assert continued("{% for m in messages %}{{ m.content | trim }}|{% endfor %}", "end ") == "Hi|end"
    listing = "{% for m in messages %}" + LOOP.replace("CONTENT", "m.content") + "{% endfor %}"
    assert continued(listing, [{"type": "text", "text": "so"}]) == "[text:Hi][text:so"


def test_what_cannot_be_continued() -> None:
    with pytest.raises(RequestError, match="exclude each other"):
        templated(CHAT_TEMPLATE).render_chat(MESSAGES, continue_final_message=True)
    for template, content in (("{{ messages[0].content }}", "x"), (CHAT_TEMPLATE, ""), (CHAT_TEMPLATE, None)):
        with pytest.raises(RequestError) as caught:
            continued(template, content)
        assert caught.value.param == "continue_final_message"


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", MESSAGES, "roles must alternate"),
        ("{{ messages[0].content.nope() }}", MESSAGES, "refuses the messages"),
        (CHAT_TEMPLATE, [], "empty"),
        (None, MESSAGES, "no chat template"),
        ("{{ ''.__class__.__mro__ }}", MESSAGES, "unsafe"),
        ("{{ 1 // 0 }}", MESSAGES, "zero"),
        (CHAT_TEMPLATE, [{"role": "user", "content": "a\ud800"}], "surrogate"),
    ],
)
def test_refusals(template: str | None, messages: list[dict[str, str]], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        templated(template).render_chat(messages)
    assert caught.value.param == "messages"


def test_a_template_of_ones_own(tiny_model_path: Path, tmp_path: Path) -> None:
    source = resolve_model(str(tiny_model_path))
    file = tmp_path / "template.jinja"
    file.write_text("file: {{ messages[0]['content'] }}")
    assert Tokenizer.load(source, chat_template=str(file)).render_chat(MESSAGES) == "file: Hi"
    assert Tokenizer.load(source, chat_template="{{ messages[2]['content'] }}").render_chat(MESSAGES) == "?"
    with pytest.raises(ConfigError, match=r"nowhere\.jinja"):
        Tokenizer.load(source, chat_template="nowhere.jinja")
    with pytest.raises(ConfigError, match="not valid"):
        Tokenizer.load(source, chat_template="{% for %}")
