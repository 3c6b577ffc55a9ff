from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from octavo.observe.logs import setup_logging


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    logging.captureWarnings(False)
    for name in ("uvicorn", "uvicorn.access", "httpx", "asyncio", "py.warnings"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_one_line_a_record_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info")
    setup_logging("info")
    logging.getLogger("octavo.engine").info("%d blocks", 12)
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.endswith("Z info octavo.engine: 12 blocks")


def test_a_message_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info")
    logging.getLogger("octavo").warning("id %s", "x\r\n2026 error octavo: on fire\x1b[31m")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(r"id x\r\n2026 error octavo: on fire\x1b[31m")


def test_libraries_are_quiet_unless_debugging(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info")
    for name in ("httpx", "uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(name).warning("chatter")
    assert capsys.readouterr().err == ""
    logging.getLogger("uvicorn.error").error("cause")
    assert "cause" in capsys.readouterr().err
    setup_logging("debug")
    logging.getLogger("httpx").debug("detail")
    assert "detail" in capsys.readouterr().err


def test_the_access_log_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", access_log=True)
    logging.getLogger("uvicorn.access").info("GET /health 200")
    assert "GET /health 200" in capsys.readouterr().err


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("error")
    logging.getLogger("octavo").warning("hidden")
    assert capsys.readouterr().err == ""


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", log_format="json")
    logging.getLogger("octavo.x").warning("two\nlines: %s", "é")
    try:
        raise ValueError("cause")
    except ValueError:
        logging.getLogger("octavo").exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("warning", "octavo.x", "two\nlines: é")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert "ValueError: cause" in second["exception"]
