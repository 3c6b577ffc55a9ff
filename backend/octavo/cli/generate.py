"""`octavo generate`: a prompt or JSONL in, JSONL out, as many at once as the engine takes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from tqdm import tqdm

from octavo.cli.lines import read_lines
from octavo.cli.records import Job, format_error, format_result, parse
from octavo.commandline import EXIT_FAILED, Parsed
from octavo.config import EngineConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.intake import Prompt
from octavo.engine.stream import join
from octavo.errors import ConfigError, RequestError
from octavo.observe.logs import setup_logging
from octavo.outputs import RequestOutput
from octavo.sampling_params import SamplingParams

# Requests read ahead of the oldest unwritten result, in units of what runs at once: enough to keep the engine busy
# behind one long answer, little enough for any size of file.
_WINDOW = 4


def run(parsed: Parsed) -> int:
    """Exit code 1 if a line failed."""
    config, params = parsed.get(EngineConfig), parsed.get(SamplingParams)
    prompt, input_file, output_file = (parsed.extras[name] for name in ("prompt", "input_file", "output_file"))
    setup_logging(config.log_level, log_format=config.log_format)
    if prompt is not None:
        if input_file is not None:
            raise ConfigError("give a PROMPT or --input, not both", "input")
        with _sink(output_file, None) as sink:
            asyncio.run(_run_prompt(config, prompt, params, sink))
        return 0
    with _source(input_file) as (source, total), _sink(output_file, input_file) as sink:
        batch = _Batch(config, params, sink, total)
        asyncio.run(batch.run(source))
    return EXIT_FAILED if batch.failed else 0


async def _run_prompt(config: EngineConfig, prompt: str, params: SamplingParams, sink: TextIO) -> None:
    engine = AsyncEngine(config)
    try:
        await engine.start()
        _write(sink, format_result(1, None, await _complete(engine, prompt, params)))
    finally:
        await engine.shutdown()


@dataclass
class _Batch:
    """All lines of an input through one engine; results in the input's order."""

    config: EngineConfig
    params: SamplingParams
    sink: TextIO
    total: int | None
    failed: int = 0
    done: int = 0
    tokens: int = 0
    _tasks: asyncio.Queue[asyncio.Task[dict[str, Any]] | None] = field(init=False)
    _running: set[asyncio.Task[dict[str, Any]]] = field(init=False, default_factory=set)

    async def run(self, source: BinaryIO) -> None:
        self._tasks = asyncio.Queue(_WINDOW * self.config.max_num_seqs)
        engine = AsyncEngine(self.config)
        reader = None
        try:
            await engine.start()
            start = time.perf_counter()
            reader = asyncio.create_task(self._read(engine, source))
            with tqdm(total=self.total, desc="Requests", unit="req", dynamic_ncols=True) as bar:
                await self._write_all(bar, start)
            await reader
        finally:
            left = [*self._running, *([reader] if reader is not None else [])]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await engine.shutdown()
        seconds = time.perf_counter() - start
        summary = f"{self.done} requests, {self.failed} failed, {self.tokens} output tokens"
        print(f"octavo: {summary}, {self.tokens / seconds:.1f} tok/s", file=sys.stderr)

    async def _read(self, engine: AsyncEngine, source: BinaryIO) -> None:
        number = 0
        try:
            async with aclosing(read_lines(source)) as lines:
                async for raw in lines:
                    number += 1
                    if raw.strip():
                        task = asyncio.create_task(self._answer(engine, number, raw))
                        self._running.add(task)
                        task.add_done_callback(self._ended)
                        await self._tasks.put(task)
        except OSError:
            await self._tasks.put(None)
            raise
        await self._tasks.put(None)

    def _ended(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Seen, even if the writer never comes to it: an engine that dies fails them all, and one is told.
            task.exception()

    async def _answer(self, engine: AsyncEngine, number: int, raw: bytes) -> dict[str, Any]:
        job_id = None
        try:
            job = parse(number, raw, self.params)
            job_id = job.id
            output = await _complete(engine, _prompt(engine, job), job.params)
        except RequestError as error:
            return format_error(number, job_id, error)
        self.tokens += output.num_output_tokens
        return format_result(number, job_id, output)

    async def _write_all(self, bar: tqdm[Any], start: float) -> None:
        while (task := await self._tasks.get()) is not None:
            record = await task
            _write(self.sink, record)
            self.done += 1
            if "error" in record:
                self.failed += 1
                tqdm.write(f"octavo: line {record['line']}: {record['error']}", file=sys.stderr)
            rate = self.tokens / (time.perf_counter() - start)
            bar.set_postfix_str(f"{rate:.1f} output tok/s", refresh=False)
            bar.update(1)


def _prompt(engine: AsyncEngine, job: Job) -> Prompt:
    if job.messages is None:
        if job.prompt is None:
            raise RequestError("there is no prompt", "prompt")
        return job.prompt
    tokenizer = engine.tokenizer
    if tokenizer is None:
        raise RequestError("messages need a tokenizer, and this engine has none", "messages")
    text = tokenizer.render_chat(job.messages, add_generation_prompt=True)
    # The template has written the special tokens already.
    return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}


async def _complete(engine: AsyncEngine, prompt: Prompt, params: SamplingParams) -> RequestOutput:
    whole: RequestOutput | None = None
    async for output in engine.generate(prompt, params):
        if whole is None:
            whole = output
        else:
            join(whole, output)
    if whole is None:
        raise RuntimeError("a request ended without an output")
    return whole


def _write(sink: TextIO, record: dict[str, Any]) -> None:
    sink.write(json.dumps(record, ensure_ascii=False) + "\n")
    sink.flush()


@contextmanager
def _source(name: str | None) -> Iterator[tuple[BinaryIO, int | None]]:
    """The input and how many lines it has, where that can be known."""
    if name is None and sys.stdin.isatty():
        raise ConfigError("nothing to do: give a PROMPT, or --input FILE (- is stdin)", "input")
    if name is None or name == "-":
        # Neither sys.stdin nor closed: a reader that still waits in it holds its lock, and the end would wait for that.
        yield open(sys.stdin.fileno(), "rb", closefd=False), None  # noqa: SIM115
        return
    try:
        stream = Path(name).open("rb")  # noqa: SIM115  # closed below; here only its own errors are to be caught
    except OSError as error:
        raise ConfigError(f"--input: cannot read {name}: {error.strerror}", "input") from None
    with stream:
        total = None
        if stream.seekable():
            total = sum(1 for line in stream if line.strip())
            stream.seek(0)
        yield stream, total


@contextmanager
def _sink(name: str | None, input_name: str | None) -> Iterator[TextIO]:
    if name is None:
        yield sys.stdout
        return
    path = Path(name)
    if input_name is not None and path.exists() and Path(input_name).exists() and path.samefile(input_name):
        raise ConfigError("--output is the --input file; name another", "output")
    try:
        stream = path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output: cannot write {name}: {error.strerror}", "output") from None
    with stream:
        yield stream
