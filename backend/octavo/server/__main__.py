"""`python -m octavo.server`: the same as `octavo serve`."""

from __future__ import annotations

import sys
from importlib import import_module

from octavo.commandline import KnobCommand, Parsed, engine_group, run
from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.flags import FlagGroup
from octavo.server.config import ServerConfig

DEFAULT_NAME = "SmolLM2-135M-Instruct"

serve = KnobCommand(
    "serve",
    "octavo.server.__main__:start",
    summary="Serve MODEL over HTTP with OpenAI's API.",
    groups=[FlagGroup("Server", ServerConfig), engine_group()],
    model_argument=True,
)


def start(parsed: Parsed) -> int:
    """Runs the server until it is told to stop; returns the exit code."""
    # Not at the top: the server needs torch, its help doesn't.
    code: int = import_module("octavo.server.run").serve(_named(parsed.get(EngineConfig)), parsed.get(ServerConfig))
    return code


def _named(config: EngineConfig) -> EngineConfig:
    """Gives the default model a name that people can type; its reference stays valid."""
    if config.model != DEFAULT_MODEL or config.served_model_name:
        return config
    return config.model_copy(update={"served_model_name": [DEFAULT_NAME, DEFAULT_MODEL]})


def main() -> int:
    """Returns the exit code."""
    return run(serve, "python -m octavo.server")


if __name__ == "__main__":
    sys.exit(main())
