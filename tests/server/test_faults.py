"""A real server under the official client while its core is killed, again and again: nothing lost, nothing wrong."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from tests.server.process import KEY, ServerProcess
from tests.server.test_recovery import FLAGS
from tests.tiny import save_tiny_llama

pytestmark = [pytest.mark.server, pytest.mark.slow]

NUM_KILLS = 20
NUM_STREAMS = 16


@dataclass
class Answer:
    """What a client has of one choice."""

    text: str = ""
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("faults") / "tiny", context=2048)


@pytest.fixture
def server(model: Path) -> Iterator[ServerProcess]:
    with ServerProcess(model, *FLAGS, "--max-restarts", "1000", "--restart-window", "0.5") as one:
        yield one.wait_ready()


def body(number: int) -> dict[str, Any]:
    """Eight kinds of request: greedy and seeded, n of 1 and 2, long and short prompts, an end by a stop string."""
    return {
        "model": "tiny",
        "prompt": "the fox and the dog " * (1 + number % 8 * 5),
        "max_tokens": 300 + 40 * (number % 8),
        "temperature": (0, 0.9)[number % 2],
        "seed": number % 8,
        "n": 1 + (number % 4 == 3),
        "logprobs": 1,
        "stop": ["qqqqqq"],
        "extra_body": {"ignore_eos": True},
    }


async def stream(client: openai.AsyncOpenAI, number: int) -> tuple[dict[int, Answer], int]:
    """The choices, and the tokens counted by the server."""
    answers: dict[int, Answer] = {}
    count = 0
    chunks = await client.completions.create(**body(number), stream=True, stream_options={"include_usage": True})
    async for chunk in chunks:
        if chunk.usage is not None:
            count = chunk.usage.completion_tokens
        for choice in chunk.choices:
            answer = answers.setdefault(choice.index, Answer())
            assert answer.finish_reason is None
            answer.text += choice.text
            answer.finish_reason = choice.finish_reason
            if choice.logprobs is not None:
                answer.tokens += choice.logprobs.tokens or []
                answer.logprobs += [value or 0.0 for value in choice.logprobs.token_logprobs or []]
    return answers, count


async def until(condition: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


def check(got: tuple[dict[int, Answer], int], want: tuple[dict[int, Answer], int]) -> None:
    assert got[1] == want[1]
    assert got[0].keys() == want[0].keys()
    for index, answer in want[0].items():
        mine = got[0][index]
        assert (mine.text, mine.tokens, mine.finish_reason) == (answer.text, answer.tokens, answer.finish_reason)
        assert mine.logprobs == pytest.approx(answer.logprobs, abs=1e-3)


@pytest.mark.timeout(900)
async def test_twenty_kills_in_a_row_lose_nothing(server: ServerProcess) -> None:
    """SIGKILL at random moments under sixteen streams. The front's memory of each stream is all that survives."""
    dice = random.Random(7)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=600) as client:
        want = [await stream(client, number) for number in range(8)]
        kills = 0
        checked = 0

        async def keep_streaming(number: int) -> None:
            nonlocal checked
            while kills < NUM_KILLS:
                check(await stream(client, number), want[number % 8])
                checked += 1
                number += 1

        streams = asyncio.gather(*(keep_streaming(number) for number in range(NUM_STREAMS)))
        with server.client() as probe:
            while kills < NUM_KILLS and not streams.done():
                await until(lambda: streams.done() or probe.get("/ready").status_code == 200)
                await asyncio.sleep(dice.uniform(0.0, 0.6))
                server.core().kill()
                kills += 1
                await until(lambda: probe.get("/ready").status_code == 503)
        await streams
        assert kills == NUM_KILLS
        assert checked >= NUM_STREAMS
    found = server.wait_idle()
    assert found["octavo:core_restarts_total"] == NUM_KILLS
    assert found["vllm:kv_cache_usage_perc"] == 0
    assert found["vllm:request_success_total{error}"] == found["vllm:request_success_total{abort}"] == 0


async def test_a_frozen_core_is_replaced(model: Path) -> None:
    """SIGSTOP, which no exit code tells of."""
    with ServerProcess(model, *FLAGS, "--stall-timeout", "2") as server:
        server.wait_ready()
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=300) as client:
            want = [await stream(client, number) for number in range(4)]
            running = [asyncio.create_task(stream(client, number)) for number in range(4)]
            await asyncio.sleep(0.1)
            core = server.core()
            core.suspend()
            with server.client() as probe:
                await until(lambda: probe.get("/ready").status_code == 503)
                assert "stall_timeout" in probe.get("/ready").json()["error"]["message"]
            for task, one in zip(running, want, strict=True):
                check(await task, one)
            assert not core.is_running()
        assert "it is killed" in server.stderr
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0


def test_nothing_is_left_of_a_front_that_was_killed(model: Path) -> None:
    """kill -9 on the server: its core, which nobody waits for, ends by itself, idle, busy or still loading."""
    for wait in (True, False):
        with ServerProcess(model, *FLAGS) as server:
            if wait:
                server.wait_ready()
            deadline = time.monotonic() + 60
            while not (children := psutil.Process(server.process.pid).children()):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            server.process.kill()
            assert psutil.wait_procs(children, timeout=30)[1] == []
