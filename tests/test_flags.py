"""Knobs as flags: every field makes it from the command line, a file and the environment into its class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import click
import pytest
from pydantic import Field

from octavo.config import EngineConfig
from octavo.errors import ConfigError, RequestError
from octavo.flags import FlagGroup, Shape, flag_name, load_config_file
from octavo.sampling_params import SamplingParams
from octavo.server.config import ServerConfig
from octavo.validation import Knobs

GROUPS = {
    "engine": FlagGroup("Engine", EngineConfig, defaults={"model": "m"}),
    "server": FlagGroup("Server", ServerConfig),
    "sampling": FlagGroup("Sampling", SamplingParams),
}
FIELDS = [(group, name) for group, made in GROUPS.items() for name in made.knobs.model_fields]


def parse(group: FlagGroup, arguments: Sequence[str]) -> dict[str, Any]:
    """What was typed, as a command hands it to `FlagGroup.build`."""
    command = click.Command("test", params=list(group.options()))
    ctx = command.make_context("test", list(arguments))
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in ctx.params.items()
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }


def sample(group: FlagGroup, name: str) -> Any:
    """A valid value that is not the default."""
    shape = Shape.of(group.knobs.model_fields[name].annotation)
    default = getattr(group.build({}, environ={}), name)
    if shape.mapping:
        return {7: 1.5}
    if shape.scalar is bool:
        return not default
    candidates = [choice for choice in shape.choices if choice != default] or (
        [7, 4096] if shape.scalar is int else [0.25, 1.75] if shape.scalar is float else ["text"]
    )
    for candidate in candidates:
        value = [candidate, candidate] if shape.many else candidate
        try:
            if getattr(group.build({name: value}, environ={}), name) != default:
                return value
        except ValueError:
            continue
    raise AssertionError(f"no sample for {name}")


def typed(name: str, value: Any) -> list[str]:
    flag = flag_name(name)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, list):
        return [part for item in value for part in (flag, str(item))]
    if isinstance(value, dict):
        return [flag, '{"7": 1.5}']
    return [flag, str(value)]


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_every_field_is_a_flag_a_key_and_a_variable(kind: str, name: str, tmp_path: Path) -> None:
    group = GROUPS[kind]
    value = sample(group, name)
    expected = group.build({name: value}, environ={})
    assert group.build(parse(group, typed(name, value)), environ={}) == expected

    file = tmp_path / "config.yaml"
    click_name = name.replace("_", "-")
    file.write_text(f"{click_name}: {str(value).lower() if isinstance(value, bool) else value}\n")
    assert group.build({}, load_config_file(str(file), group.fields), environ={}) == expected

    if not isinstance(value, list):
        text = '{"7": 1.5}' if isinstance(value, dict) else str(value)
        assert group.build({}, environ={f"OCTAVO_{name.upper()}": text}) == expected


@pytest.mark.parametrize("kind", GROUPS)
def test_nothing_given_is_the_classes_own_defaults(kind: str) -> None:
    group = GROUPS[kind]
    assert parse(group, []) == {}
    assert group.build({}, environ={}) == group.knobs(**group.defaults)


def test_precedence(tmp_path: Path) -> None:
    group = FlagGroup("Engine", EngineConfig, defaults={"model": "m", "max_num_seqs": 5})
    path = tmp_path / "c.yaml"
    path.write_text("max-num-seqs: 3\nblock_size: 32\n")
    file = load_config_file(str(path), group.fields)
    environ = {"OCTAVO_MAX_NUM_SEQS": "2", "OCTAVO_BLOCK_SIZE": "64", "OCTAVO_SEED": "9"}

    def value(flags: dict[str, Any], with_file: bool, with_environ: bool) -> Any:
        config = group.build(flags, file if with_file else None, environ if with_environ else {})
        assert isinstance(config, EngineConfig)
        return config.max_num_seqs

    assert value({}, False, False) == 5
    assert value({}, False, True) == 2
    assert value({}, True, True) == 3
    assert value({"max_num_seqs": 1}, True, True) == 1
    config = group.build({}, file, environ)
    assert isinstance(config, EngineConfig)
    assert (config.block_size, config.seed) == (32, 9)


@pytest.mark.parametrize(
    ("flags", "yaml", "environ", "origin"),
    [
        ({"block_size": "0"}, "", {}, "(from --block-size)"),
        ({}, "block-size: many", {}, "c.yaml)"),
        ({}, "", {"OCTAVO_BLOCK_SIZE": "0"}, "(from OCTAVO_BLOCK_SIZE)"),
    ],
)
def test_an_error_says_where_the_value_came_from(
    flags: dict[str, Any], yaml: str, environ: dict[str, str], origin: str, tmp_path: Path
) -> None:
    group = GROUPS["engine"]
    path = tmp_path / "c.yaml"
    path.write_text(yaml)
    with pytest.raises(ConfigError) as caught:
        group.build(flags, load_config_file(str(path), group.fields), environ)
    assert caught.value.param == "block_size"
    assert origin in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sampling_errors_stay_request_errors() -> None:
    with pytest.raises(RequestError, match=r"temperature.*-1.*--temperature"):
        GROUPS["sampling"].build({"temperature": "-1"}, environ={})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("max-num-seq: 3", ["unknown option 'max-num-seq'", "did you mean 'max_num_seqs'"]),
        ("max-num-seqs: 3\nmax_num_seqs: 4", ["given twice"]),
        ("- a\n- b", ["mapping", "a list"]),
        ("just text", ["mapping", "text"]),
        ("a: [1", ["is not YAML"]),
        ("!!python/object/apply:os.getcwd []", ["is not YAML"]),
    ],
)
def test_bad_config_files(content: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_config_file(str(path), EngineConfig.model_fields)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_binary_config_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_config_file(str(tmp_path / "none.yaml"), [])
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config_file(str(tmp_path / "b.yaml"), [])


def test_an_empty_config_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert load_config_file(str(tmp_path / "c.yaml"), []).values == {}


class Odd(Knobs):
    """A field that no flag can carry."""

    noun: ClassVar[str] = "option"
    pairs: list[list[int]] = Field(default_factory=list)


def test_a_field_that_cannot_be_a_flag_is_found_when_the_command_is_built() -> None:
    with pytest.raises(TypeError, match="cannot be a command-line option"):
        FlagGroup("Odd", Odd).options()


def test_shapes() -> None:
    assert Shape.of(int | None) == Shape(int)
    assert Shape.of(Literal["a", "b"] | None).metavar == "[a|b]"
    assert Shape.of(list[str]) == Shape(str, many=True)
    assert Shape.of(dict[str, int]).metavar == "JSON"
    with pytest.raises(TypeError):
        Shape.of(int | list[str])
