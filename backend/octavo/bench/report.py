"""What every benchmark does with its result: a table on the terminal, JSON, a picture."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from octavo.bench.machine import Machine
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = tuple[str, str]


def check_outputs(json_file: str | None, plot_file: str | None) -> None:
    """Refuses before the run what would fail after it.

    Raises:
        ConfigError: a file cannot be written, or matplotlib is missing.
    """
    for flag, name in (("--json", json_file), ("--plot", plot_file)):
        if name is None:
            continue
        path = Path(name)
        if path.is_dir() or not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
            raise ConfigError(f"{flag}: cannot write {name}; name a file in a directory that exists")
    if plot_file is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'octavo[plot]'")


def show(title: str, rows: Sequence[Row], machine: Machine) -> None:
    """Prints a table, the machine under it."""
    table = Table(show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    threads = f", {machine.threads} thread{'s' if machine.threads > 1 else ''}" if machine.threads is not None else ""
    gpu = f", {machine.gpu}" if machine.gpu is not None else ""
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(title, soft_wrap=True)
    console.print(table)
    console.print(
        f"{machine.cpu}{threads}{gpu}; octavo {machine.octavo}, torch {machine.torch}", soft_wrap=True, style="dim"
    )


def write(
    result: DataclassInstance, json_file: str | None, plot_file: str | None, draw: Callable[[str], None] | None
) -> None:
    """Writes what was asked for. Not-a-number becomes null, which is what JSON has."""
    if json_file is not None:
        text = json.dumps(_plain(asdict(result)), indent=2, ensure_ascii=False, allow_nan=False)
        Path(json_file).write_text(text + "\n", encoding="utf-8")
    if plot_file is not None and draw is not None:
        draw(plot_file)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"


def mebibytes(count: int | None) -> str:
    return "-" if count is None else f"{count / (1 << 20):,.0f} MiB"


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"
