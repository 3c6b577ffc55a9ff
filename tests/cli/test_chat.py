"""`octavo chat`: what is said is remembered, what is stopped is stopped, nothing drives the terminal."""

from __future__ import annotations

import asyncio
import io
from contextlib import suppress

import pytest
from rich.console import Console

from octavo.cli import chat as module
from octavo.cli.chat import Conversation
from octavo.cli.commands import octavo
from octavo.commandline import run
from octavo.errors import RequestError
from octavo.sampling_params import SamplingParams
from tests.cli.fake_engine import FakeEngine


def conversation(system: str | None = None) -> tuple[Conversation, FakeEngine, io.StringIO]:
    engine, out = FakeEngine(None), io.StringIO()
    return Conversation(engine, SamplingParams(), system, Console(file=out, width=40, highlight=False)), engine, out  # type: ignore[arg-type]


async def test_turns_are_remembered_and_reset_forgets() -> None:
    talk, _, out = conversation("be brief")
    await talk.answer("hi")
    await talk.answer("there")
    assert [message["role"] for message in talk.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert talk.messages[2]["content"] == "system:be brief user:hi "
    assert "system:be" in out.getvalue()
    talk.reset()
    assert talk.messages == [{"role": "system", "content": "be brief"}]


async def test_a_refused_turn_leaves_the_conversation_as_it_was() -> None:
    talk, engine, _ = conversation()
    await talk.answer("hi")
    before = list(talk.messages)

    class Refuses:
        def render_chat(self, *_: object, **__: object) -> str:
            return "refuse"

        def encode(self, *_: object, **__: object) -> list[int]:
            return []

    talk._tokenizer = Refuses()  # type: ignore[assignment]
    with pytest.raises(RequestError):
        await talk.answer("too long")
    assert talk.messages == before
    assert engine.running == 0


async def test_a_stopped_answer_is_aborted_and_what_was_said_counts() -> None:
    talk, engine, _ = conversation()
    task = asyncio.create_task(talk.answer("please hang"))
    await asyncio.sleep(0.05)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert engine.aborted == 1
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]


async def test_control_characters_do_not_reach_the_terminal() -> None:
    talk, _, out = conversation()
    await talk.answer("\x1b[31mred\x07 [bold]x[/bold]\x9b1m")
    assert "\x1b" not in out.getvalue()
    assert "\x07" not in out.getvalue()
    assert "\x9b" not in out.getvalue()
    assert "[bold]x[/bold]" in out.getvalue()


def test_a_session(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "AsyncEngine", FakeEngine)
    monkeypatch.setattr(module, "setup_logging", lambda *_, **__: None)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\n/rest\n/reset\nagain\n"))
    assert run(octavo, "octavo", ["chat", "/m"]) == 0
    out = capsys.readouterr().out
    assert "user:hello" in out
    assert "unknown command /rest" in out
    assert "forgotten" in out
    assert out.count("user:hello") == 1
    assert FakeEngine.last.stopped


def test_exit_leaves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "AsyncEngine", FakeEngine)
    monkeypatch.setattr(module, "setup_logging", lambda *_, **__: None)
    monkeypatch.setattr("sys.stdin", io.StringIO("/exit\nnever\n"))
    assert run(octavo, "octavo", ["chat", "/m"]) == 0
    assert "never" not in capsys.readouterr().out
