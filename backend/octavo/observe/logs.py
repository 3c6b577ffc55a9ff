"""Logging of octavo's own processes: to stderr, one line a record, other people's chatter kept down."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Literal

LogFormat = Literal["text", "json"]

_CHATTY = ("asyncio", "filelock", "fsspec", "httpcore", "httpx", "huggingface_hub", "py.warnings", "urllib3", "uvicorn")
# A message can carry text from a request: it must not be able to forge a line or drive the terminal.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160))} | {9: "\t", 10: "\\n", 13: "\\r"}


class LineFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z level logger: message`, a traceback after it where there is one."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(level)s %(name)s: %(text)s")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        record.text = record.getMessage().translate(_CONTROLS)
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time, level, logger, message, and exception where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return json.dumps(shown, ensure_ascii=True)


def setup_logging(level: str = "info", access_log: bool = False, log_format: LogFormat = "text") -> None:
    """Takes over the root logger of this process. Calling it again replaces what it set up before.

    Libraries are heard from errors up only, or at `level` if that is `debug`.

    Args:
        level: least severe record shown: debug, info, warning or error.
        access_log: show the HTTP server's line for every request, whatever the level.
        log_format: `text` for LineFormatter, `json` for JsonFormatter.
    """
    severity = getattr(logging, level.upper())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else LineFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(severity)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(severity if level == "debug" else logging.ERROR)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO if access_log else logging.ERROR)
    logging.captureWarnings(True)
    # transformers sets its own handler and level when it is imported; the environment is the way to its ear before.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "warning" if level == "debug" else "error")
