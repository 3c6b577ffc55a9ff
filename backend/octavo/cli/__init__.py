"""The `octavo` command."""

from __future__ import annotations

from octavo.cli.commands import octavo
from octavo.commandline import run


def main() -> int:
    """Entry point of the `octavo` script; returns the exit code."""
    return run(octavo, "octavo")
