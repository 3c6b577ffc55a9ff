from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from octavo.outputs import Logprob
from octavo.server.logprobs import CompletionLogprobs, chat_logprob
from octavo.server.merge import merged, while_connected


class Source:
    """A stream of `count` numbers that knows how many were taken, and whether it was closed."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.given = 0
        self.closed = False
        self._count = count
        self._error = error

    async def stream(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self._count):
                self.given += 1
                yield number
                await asyncio.sleep(0)
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


@pytest.mark.parametrize("count", [1, 3])
async def test_everything_arrives_in_each_streams_order(count: int) -> None:
    sources = [Source(5) for _ in range(count)]
    seen: list[list[int]] = [[] for _ in sources]
    async for index, number in merged([source.stream() for source in sources]):
        seen[index].append(number)
    assert seen == [[0, 1, 2, 3, 4]] * count
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_early_closes_every_stream(count: int) -> None:
    sources = [Source(1000) for _ in range(count)]
    async with aclosing(merged([source.stream() for source in sources])) as items:
        await anext(items)
    assert all(source.closed for source in sources)


async def test_the_first_failure_fails_the_whole_and_closes_the_others() -> None:
    good, bad = Source(100_000), Source(2, ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        async for _ in merged([good.stream(), bad.stream()]):
            pass
    assert good.closed
    assert good.given < 1000


async def test_a_reader_that_stops_reading_stops_the_streams() -> None:
    """Few items wait: one a stream in the queue, one in each stream's hand."""
    sources = [Source(10_000) for _ in range(4)]
    async with aclosing(merged([source.stream() for source in sources])) as items:
        await anext(items)
        for _ in range(100):
            await asyncio.sleep(0)
        assert sum(source.given for source in sources) <= 10


async def test_work_is_cancelled_when_the_client_goes() -> None:
    source = Source(10**9)
    gone = asyncio.Event()

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def work() -> None:
        async with aclosing(merged([source.stream()])) as items:
            async for _ in items:
                if source.given == 50:
                    gone.set()

    await asyncio.wait_for(while_connected(receive, work()), 5)  # type: ignore[arg-type]
    assert source.closed


async def test_works_own_failure_is_raised() -> None:
    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        return {}

    async def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await while_connected(receive, work())  # type: ignore[arg-type]


def test_ids_without_text_keep_apart() -> None:
    """A model pads its vocabulary: two such ids both have no bytes, and one would hide the other."""
    position = {7: Logprob(-1.0, 1, "", b""), 8: Logprob(-2.0, 2, "", b"")}
    assert CompletionLogprobs(2, None, True).generated([7], [position])["top_logprobs"] == [
        {"token_id:7": -1.0, "token_id:8": -2.0}
    ]
    assert [top["token"] for top in chat_logprob(position, 2)["top_logprobs"]] == ["token_id:7", "token_id:8"]
