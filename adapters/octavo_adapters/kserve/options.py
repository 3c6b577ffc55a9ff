"""The command line: KServe's own flags, then octavo's; both spellings, with `-` and with `_`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import click
from pydantic import Field

from octavo import ConfigError, EngineConfig
from octavo.commandline import KnobCommand, Parsed
from octavo.flags import FlagGroup
from octavo.server.config import ServerConfig
from octavo.validation import Knobs
from octavo_adapters.kserve.storage import download, find_model

MODEL_DIR = "/mnt/models"


class KServeOptions(Knobs):
    """Immutable.

    Raises:
        ConfigError: an unknown name, a wrong type, or a value out of range.
    """

    noun: ClassVar[str] = "kserve option"

    model_dir: str = Field(MODEL_DIR, description="Where the model is mounted: a directory, or a GGUF file.")
    storage_uri: str | None = Field(None, description="Fetched into model_dir first, by KServe's own downloader.")
    grace_period: float = Field(
        30.0,
        gt=0,
        le=86400,
        description="terminationGracePeriodSeconds of the pod: requests end before it does.",
    )


COMMAND = KnobCommand(
    "kserve",
    "octavo_adapters.kserve.serve:run",
    summary="Serve a model on KServe's ModelServer. KServe's own flags (--http_port, --model_name, ...) come first.",
    groups=[
        FlagGroup("KServe", KServeOptions),
        FlagGroup("Engine", EngineConfig, defaults={"model": MODEL_DIR}),
        FlagGroup("OpenAI API", ServerConfig, skip=frozenset({"host", "port", "admin_port", "admin_host"})),
    ],
    extras=[click.Option(["model_name", "--model-name"], default="model", help="Name in the paths of the protocols.")],
)


@dataclass(frozen=True)
class CommandLine:
    """
    Attributes:
        server: KServe's own arguments.
        rest: octavo's, unparsed.
    """

    server: argparse.Namespace
    rest: list[str]

    @classmethod
    def split(cls, arguments: Sequence[str]) -> CommandLine:
        """`model_name` is for both.

        Raises:
            ConfigError: more than one worker is asked for.
        """
        from kserve.model_server import parser

        # Or --model would be taken for --model_name.
        parser.allow_abbrev = False
        server, rest = parser.parse_known_args(list(arguments))
        if server.workers != 1:
            raise ConfigError(
                f"workers is {server.workers}, but an engine has one server process; scale with replicas", "workers"
            )
        return cls(server, [*rest, "--model-name", server.model_name])


def engine_config(parsed: Parsed) -> EngineConfig:
    """The engine's options, with the model that is mounted unless one was named.

    Raises:
        ConfigError: what is mounted, or fetched, is no model.
    """
    config, options = parsed.get(EngineConfig), parsed.get(KServeOptions)
    model_name = str(parsed.extras["model_name"])
    changes: dict[str, Any] = {}
    if config.model == MODEL_DIR:
        root = download(options.storage_uri, options.model_dir) if options.storage_uri else options.model_dir
        changes["model"] = str(find_model(Path(root)))
    if not config.served_model_name:
        changes["served_model_name"] = [model_name]
    return config.model_copy(update=changes)
