"""Commands that adapters add to the command line, found by entry point: the core imports no adapter."""

from __future__ import annotations

from importlib.metadata import entry_points

import click

GROUP = "octavo.commands"


def installed_commands() -> list[click.Command]:
    """Of every installed distribution, by name. Raises TypeError for an entry point that is no command."""
    found = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        command = entry.load()
        if not isinstance(command, click.Command):
            raise TypeError(f"the entry point '{entry.name}' of {GROUP} is no command: {command!r}")
        found.append(command)
    return found
