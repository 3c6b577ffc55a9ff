"""The commands as a person runs them: real processes, a tiny real model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CODE = "import sys; from octavo.cli import main; sys.exit(main())"
ENGINE = ["--dtype", "float32", "--num-threads", "1", "--kv-cache-memory-bytes", "8000000", "--log-level", "warning"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", CODE, *arguments]


@pytest.mark.slow
def test_generate(tiny_model_path: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(
        '{"prompt": "the quick", "max_tokens": 3, "ignore_eos": true}\n'
        '{"prompt": "the", "max_tokens": 0}\n'
        '{"prompt_token_ids": [99999]}\n'
        '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "ignore_eos": true, "logprobs": 1}\n'
    )
    done = subprocess.run(
        command("generate", "--model", str(tiny_model_path), "--input", str(source), "--temperature", "0", *ENGINE),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["line"] for record in records] == [1, 2, 3, 4]
    assert len(records[0]["outputs"][0]["token_ids"]) == 3
    assert records[0]["outputs"][0]["finish_reason"] == "length"
    assert "max_tokens" in records[1]["error"]
    assert "99999" in records[2]["error"]
    assert len(records[3]["outputs"][0]["logprobs"]) == 2
    assert "4 requests, 2 failed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_chat_over_a_pipe(tiny_model_path: Path) -> None:
    done = subprocess.run(
        command("chat", str(tiny_model_path), "--max-tokens", "4", "--temperature", "0", *ENGINE),
        input="hello\nagain\n/exit\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("> ") >= 3


@pytest.mark.slow
def test_an_interrupt_ends_quietly(tiny_model_path: Path, tmp_path: Path) -> None:
    """A reader that waited for its input on the loop's own threads held up the end until the input came."""
    target = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        command("generate", "--model", str(tiny_model_path), "--input", "-", "--output", str(target), *ENGINE),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b'{"prompt": "the", "max_tokens": 2, "ignore_eos": true}\n')
        process.stdin.flush()
        deadline = 600
        while not target.exists() or not target.read_text():
            deadline -= 1
            assert deadline > 0
            assert process.poll() is None, process.stderr.read()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(20) == 130
        assert b"Traceback" not in process.stderr.read()
        assert len(target.read_text().splitlines()) == 1
    finally:
        process.kill()
        process.communicate()


def test_a_model_that_is_nowhere_is_one_line(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.gguf")
    done = subprocess.run(
        command("generate", "x", "--model", missing), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("octavo: error: ")
    assert missing in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_bench_throughput_writes_what_it_shows(tiny_model_path: Path, tmp_path: Path) -> None:
    sizes = ["--num-requests", "4", "--min-prompt-len", "4", "--max-prompt-len", "8", "--min-output-len", "2"]
    done = subprocess.run(
        command(
            "bench",
            "throughput",
            str(tiny_model_path),
            *sizes,
            "--max-output-len",
            "4",
            "--json",
            str(tmp_path / "r.json"),
            *ENGINE,
        ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for words in ("Output tok/s", "Mean batch size", "KV waste", "Preemptions", "Outside the forward pass", "Peak"):
        assert words in done.stdout
    assert json.loads((tmp_path / "r.json").read_text())["engine"]["max_num_seqs"] == 32
