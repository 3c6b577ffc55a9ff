"""`octavo generate` over an engine without a model: order, errors, limits, the end."""

from __future__ import annotations

import gc
import io
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import generate as module
from octavo.cli.commands import octavo
from octavo.commandline import run
from tests.cli.fake_engine import FakeEngine


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AsyncEngine", FakeEngine)
    monkeypatch.setattr(module, "setup_logging", lambda *_, **__: None)


def generate(*arguments: str) -> int:
    return run(octavo, "octavo", ["generate", "--model", "/m", *arguments])


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def write(path: Path, *records: Any) -> str:
    path.write_text("".join((json.dumps(one) if not isinstance(one, str) else one) + "\n" for one in records))
    return str(path)


def test_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("one two") == 0
    (record,) = lines(capsys.readouterr().out)
    assert record["outputs"][0]["text"] == "one two "
    assert record["outputs"][0]["token_ids"] == [1, 2]
    assert record["outputs"][0]["finish_reason"] == "stop"
    assert FakeEngine.last.stopped


def test_a_refused_prompt_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("refuse") == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "octavo: error: the prompt is refused\n")
    assert FakeEngine.last.stopped


def test_bad_lines_are_reported_and_the_rest_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(
        tmp_path / "in.jsonl",
        {"prompt": "slow", "id": "first"},
        "{oops",
        "",
        {"prompt": "refuse", "id": 7},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": [{"role": "user"}]},
        {"prompt_token_ids": [5, 6]},
    )
    assert generate("--input", source) == 1
    captured = capsys.readouterr()
    records = lines(captured.out)
    assert [record["line"] for record in records] == [1, 2, 4, 5, 6, 7]
    assert [("error" in record) for record in records] == [False, True, True, False, True, False]
    assert (records[0]["id"], records[2]["id"]) == ("first", 7)
    assert records[3]["prompt"] == "user:hi"
    assert records[5]["usage"]["prompt_tokens"] == 2
    assert "line 2: not JSON" in captured.err
    assert "line 4: the prompt is refused" in captured.err
    assert "6 requests, 3 failed" in captured.err


def test_output_goes_to_a_file_in_the_inputs_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["slow" if number % 7 == 0 else f"p{number}" for number in range(100)]
    source = write(tmp_path / "in.jsonl", *({"prompt": prompt} for prompt in prompts))
    target = tmp_path / "out.jsonl"
    assert generate("--input", source, "--output", str(target), "--max-num-seqs", "4") == 0
    assert [record["prompt"] for record in lines(target.read_text())] == prompts
    assert capsys.readouterr().out == ""
    # Read ahead is bounded: a window of requests, the one being written and the one waiting to enter.
    assert FakeEngine.last.most_at_once <= 4 * 4 + 2


def test_stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", {"prompt": "a"}, {"prompt": "b"})
    for arguments in ([], ["--input", "-"]):
        with Path(source).open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            assert generate(*arguments) == 0
        assert [record["prompt"] for record in lines(capsys.readouterr().out)] == ["a", "b"]


def test_nothing_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    assert generate() == 2
    assert "give a PROMPT, or --input FILE" in capsys.readouterr().err


def test_an_empty_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--input", write(tmp_path / "in.jsonl")) == 0
    assert capsys.readouterr().out == ""


def test_the_output_must_not_be_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", {"prompt": "a"})
    assert generate("--input", source, "--output", source) == 2
    assert "--output is the --input file" in capsys.readouterr().err
    assert Path(source).read_text() != ""


def test_a_dead_engine_ends_it_with_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", {"prompt": "a"}, {"prompt": "die"}, *({"prompt": "hang"} for _ in range(50)))
    assert generate("--input", source, "--max-num-seqs", "2") == 1
    captured = capsys.readouterr()
    assert [record["prompt"] for record in lines(captured.out)] == ["a"]
    assert "octavo: error: the engine core is gone" in captured.err
    assert "Traceback" not in captured.err
    assert FakeEngine.last.stopped
    assert FakeEngine.last.running == 0


def test_an_input_that_breaks_while_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(io.BytesIO):
        def __next__(self) -> bytes:
            raise OSError(5, "Input/output error")

        def seekable(self) -> bool:
            return False

    path = write(tmp_path / "in.jsonl", {"prompt": "a"})
    monkeypatch.setattr(Path, "open", lambda *_: Broken())
    assert generate("--input", path) == 1
    assert "Input/output error" in capsys.readouterr().err


def test_an_engine_that_dies_under_many_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Failures nobody waited for any more were logged by asyncio as never retrieved, one traceback each."""
    source = write(tmp_path / "in.jsonl", {"prompt": "slow"}, *({"prompt": "die"} for _ in range(20)))
    assert generate("--input", source) == 1
    gc.collect()
    assert capsys.readouterr().err.count("the engine core is gone") == 1
    assert caplog.records == []
