"""Knobs on the command line: every field of a `Knobs` class is an option, from that one definition.

A value comes from, first found: the flag, the `--config` file, the `OCTAVO_<FIELD>` variable, the default.
"""

from __future__ import annotations

import json
import os
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import click
import yaml
from pydantic.fields import FieldInfo

from octavo.config import ENV_PREFIX, environment_values
from octavo.errors import ConfigError, nearest
from octavo.validation import Knobs

K = TypeVar("K", bound=Knobs)

_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "FILE"}


def flag_name(field_name: str) -> str:
    """`max_num_seqs` -> `--max-num-seqs`."""
    return "--" + field_name.replace("_", "-")


@dataclass(frozen=True)
class Shape:
    """What a field's annotation means on a command line, where every value is text.

    Attributes:
        scalar: the type of one value; `bool` makes a `--flag/--no-flag` pair.
        choices: the values of a Literal; empty if it isn't one.
        many: a list: the flag is repeated; a variable is one value.
        mapping: a dict: the text is JSON.
    """

    scalar: type = str
    choices: tuple[Any, ...] = ()
    many: bool = False
    mapping: bool = False

    @classmethod
    def of(cls, annotation: Any) -> Shape:
        """Raises TypeError for an annotation that has no place on a command line."""
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return cls.of(args[0])
        if origin in (Union, types.UnionType):
            shapes = {cls.of(arg) for arg in args if arg is not type(None)}
            if len(shapes) == 1:
                return shapes.pop()
        if origin is Literal:
            return cls(choices=args)
        if origin in (list, tuple, set, frozenset, Sequence):
            item = cls.of(args[0])
            if not item.many and not item.mapping:
                return cls(scalar=item.scalar, choices=item.choices, many=True)
        if origin is dict or annotation is dict:
            return cls(mapping=True)
        if origin is None and isinstance(annotation, type):
            return cls(scalar=annotation)
        raise TypeError(f"{annotation} cannot be a command-line option")

    @property
    def metavar(self) -> str:
        if self.choices:
            return "[" + "|".join(str(choice) for choice in self.choices) + "]"
        return "JSON" if self.mapping else _METAVARS.get(self.scalar, "TEXT")


@dataclass(frozen=True)
class ConfigFile:
    """The content of a `--config` file; an empty one if there was none."""

    name: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FlagGroup:
    """One Knobs class as a section of a command's options.

    Attributes:
        skip: fields that have no place in this command.
        defaults: this command's own defaults, instead of the class's.
    """

    title: str
    knobs: type[Knobs]
    skip: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, FieldInfo]:
        return {name: info for name, info in self.knobs.model_fields.items() if name not in self.skip}

    def options(self) -> list[click.Option]:
        """One option a field; none has a default of its own, so that only what was typed counts as given."""
        return [self._option(name, info) for name, info in self.fields.items()]

    def build(
        self, flags: Mapping[str, Any], file: ConfigFile | None = None, environ: Mapping[str, str] | None = None
    ) -> Knobs:
        """Merges the sources and validates. Names that belong to other groups are left alone.

        Raises:
            ConfigError or RequestError, as the class has it; the message ends with where the bad value came from.
        """
        known = self.fields
        variables = {
            name: _from_text(name, Shape.of(known[name].annotation), text)
            for name, text in environment_values(self.knobs, os.environ if environ is None else environ).items()
            if name in known
        }
        in_file = {name: value for name, value in (file.values if file else {}).items() if name in known}
        given = {name: value for name, value in flags.items() if name in known}
        try:
            return self.knobs(**{**self.defaults, **variables, **in_file, **given})
        except ValueError as error:
            message, param = getattr(error, "message", str(error)), getattr(error, "param", None)
            origin = ""
            if param in given:
                origin = f" (from {flag_name(param)})"
            elif param in in_file and file is not None:
                origin = f" (from {file.name})"
            elif param in variables:
                origin = f" (from {ENV_PREFIX}{param.upper()})"
            raise self.knobs.error(message + origin, param) from None

    def _option(self, name: str, info: FieldInfo) -> click.Option:
        shape = Shape.of(info.annotation)
        flag = flag_name(name)
        help_text = " ".join(
            part
            for part in (info.description, "Repeatable." if shape.many else "", self._default_text(name, info))
            if part
        )
        if shape.scalar is bool and not shape.many:
            return click.Option([name, f"{flag}/--no-{flag[2:]}"], default=None, help=help_text)
        kind = click.Choice(shape.choices) if shape.choices else _parse_json if shape.mapping else click.STRING
        return click.Option(
            [name, flag], type=kind, multiple=shape.many, metavar=shape.metavar, default=None, help=help_text
        )

    def _default_text(self, name: str, info: FieldInfo) -> str:
        default = self.defaults.get(name, info.get_default(call_default_factory=True, validated_data={}))
        if info.is_required() and name not in self.defaults:
            return "[required]"
        if default is None or default in ([], {}, ""):
            return ""
        return f"[default: {str(default).lower() if isinstance(default, bool) else default}]"


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not JSON: {error}") from None


def _from_text(name: str, shape: Shape, text: str) -> Any:
    """The value in an environment variable; whatever isn't JSON is left to the class."""
    if shape.mapping:
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{ENV_PREFIX}{name.upper()} is not JSON: {error}", name) from None
    return text


def load_config_file(path: str, known: Iterable[str]) -> ConfigFile:
    """Reads a YAML mapping of option names; `-` and `_` mean the same in a name.

    Args:
        known: the names the command has, with underscores.

    Raises:
        ConfigError: it cannot be read, is not a mapping, or has an unknown or a repeated name.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", "config") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}", "config") from None
    if content is None:
        return ConfigFile(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must be a mapping such as 'max-num-seqs: 32', not {_kind(content)}", "config")
    names, values = list(known), {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in names:
            raise ConfigError(f"{path}: unknown option '{key}'{nearest(name, names)}", name)
        if name in values:
            raise ConfigError(f"{path}: '{key}' is given twice", name)
        values[name] = value
    return ConfigFile(path, values)


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else "text" if isinstance(value, str) else type(value).__name__
