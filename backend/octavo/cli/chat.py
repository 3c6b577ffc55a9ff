"""`octavo chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from contextlib import aclosing, suppress
from typing import Any

from rich.console import Console

from octavo.commandline import Parsed
from octavo.config import EngineConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.errors import ConfigError, RequestError
from octavo.observe.logs import setup_logging
from octavo.sampling_params import SamplingParams

_HELP = "/reset begins anew, /exit or Ctrl-D leaves, Ctrl-C stops an answer"
# What a model writes must not drive the terminal: no control characters but newline and tab.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Conversation:
    """The messages so far, and the engine that continues them."""

    def __init__(self, engine: AsyncEngine, params: SamplingParams, system: str | None, console: Console) -> None:
        if engine.tokenizer is None:
            raise ConfigError("octavo chat needs a tokenizer", "skip_tokenizer_init")
        self._tokenizer = engine.tokenizer
        self._engine = engine
        self._params = params
        self._system = system
        self._console = console
        self.messages: list[dict[str, Any]] = []
        self.reset()

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    async def answer(self, text: str) -> None:
        """Streams the answer to the terminal and remembers both; of a stopped answer, what was said.

        Raises:
            RequestError: the prompt is refused; the conversation is as it was before.
        """
        self.messages.append({"role": "user", "content": text})
        said: list[str] = []
        start = time.perf_counter()
        first, count = None, 0
        try:
            prompt = self._tokenizer.render_chat(self.messages, add_generation_prompt=True)
            ids = self._tokenizer.encode(prompt, add_special_tokens=False)
            stream = self._engine.generate({"prompt": prompt, "prompt_token_ids": ids}, self._params)
            async with aclosing(stream) as outputs:
                async for output in outputs:
                    first = first or time.perf_counter()
                    count = output.num_output_tokens
                    for sequence in output.outputs:
                        said.append(sequence.text)
                        self._show(sequence.text)
        finally:
            # Also after Ctrl-C: what was said counts; a question nobody answered doesn't.
            if said:
                self.messages.append({"role": "assistant", "content": "".join(said)})
                self._console.print()
            else:
                self.messages.pop()
        if first is not None and count > 1:
            rate = (count - 1) / max(time.perf_counter() - first, 1e-9)
            self._console.print(f"{count} tokens, {first - start:.2f} s to the first, {rate:.1f} tok/s", style="dim")

    def _show(self, text: str) -> None:
        self._console.print(text.translate(_CONTROLS), end="", markup=False, soft_wrap=True)


def run(parsed: Parsed) -> int:
    """Talks until /exit or the end of the input."""
    config = parsed.get(EngineConfig)
    setup_logging(config.log_level, log_format=config.log_format)
    console = Console(emoji=False, highlight=False)
    if sys.stdin.isatty():
        # Gives input() line editing and history, where Python was built with it.
        with suppress(ImportError):
            importlib.import_module("readline")
    with asyncio.Runner() as runner:
        engine = AsyncEngine(config)
        try:
            with console.status(f"loading {config.model_name}"):
                runner.run(engine.start())
            console.print(f"{config.model_name}: {_HELP}", style="dim", markup=False)
            conversation = Conversation(engine, parsed.get(SamplingParams), parsed.extras["system"], console)
            _talk(runner, conversation, console)
        finally:
            runner.run(engine.shutdown())
    return 0


def _talk(runner: asyncio.Runner, conversation: Conversation, console: Console) -> None:
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            console.print()
            return
        except KeyboardInterrupt:
            console.print(f"\n{_HELP}", style="dim")
            continue
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
            console.print("forgotten", style="dim")
        elif line.startswith("/"):
            console.print(f"unknown command {line.split()[0]}: {_HELP}", style="dim", markup=False)
        elif line:
            _answer(runner, conversation, line, console)


def _answer(runner: asyncio.Runner, conversation: Conversation, line: str, console: Console) -> None:
    try:
        runner.run(conversation.answer(line))
    except KeyboardInterrupt:
        console.print("stopped", style="dim")
    except RequestError as error:
        hint = " (/reset begins anew)" if error.code == "context_length_exceeded" else ""
        console.print(f"{error.message}{hint}", style="red", markup=False)
