"""What is refused for too much waits, and how long a client is told to stay away."""

from __future__ import annotations

import pytest

from octavo.engine.backlog import Backlog
from octavo.errors import EngineOverloadedError


def test_requests_beyond_those_that_run_are_bounded() -> None:
    backlog = Backlog(max_num_seqs=4, max_requests=2, max_tokens=1000)
    for _ in range(6):
        backlog.check()
        backlog.enter(1, 10)
    with pytest.raises(EngineOverloadedError, match=r"2 requests wait beyond the 4 .* at most 2 .*max_queued_requests"):
        backlog.check()
    backlog.leave(1, 10, 0.0)
    backlog.check()
    with pytest.raises(EngineOverloadedError):
        backlog.check(num_sequences=2)


def test_no_queue_at_all() -> None:
    backlog = Backlog(max_num_seqs=1, max_requests=0, max_tokens=1000)
    backlog.check()
    backlog.enter(1, 1)
    with pytest.raises(EngineOverloadedError):
        backlog.check()


def test_waiting_tokens_are_bounded_but_one_long_prompt_is_taken() -> None:
    backlog = Backlog(max_num_seqs=64, max_requests=100, max_tokens=1000)
    backlog.check(1, 5000)
    backlog.enter(1, 5000)
    with pytest.raises(EngineOverloadedError, match=r"5000 tokens wait, this one has 1, .*max_queued_tokens"):
        backlog.check(1, 1)
    backlog.begin(5000)
    backlog.check(1, 1000)
    backlog.enter(1, 1000)
    assert (backlog.num_sequences, backlog.num_tokens) == (2, 1000)
    backlog.leave(1, 0, 1.0)
    backlog.leave(1, 1000, 2.0)
    assert (backlog.num_sequences, backlog.num_tokens) == (0, 0)


def test_the_wait_follows_the_pace_at_which_requests_end() -> None:
    backlog = Backlog(max_num_seqs=1, max_requests=1000, max_tokens=1000)
    assert backlog.retry_after() == 1
    backlog.enter(201, 0)
    for end in range(100):
        backlog.leave(1, 0, end * 0.1)
    assert backlog.retry_after() == 10  # 100 wait, and one ends every 0.1 s
    backlog.enter(900, 0)
    assert backlog.retry_after() == 60
