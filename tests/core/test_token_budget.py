"""The budget after an out-of-memory step, and steps that are taken back."""

from __future__ import annotations

import pytest

from octavo.core.token_budget import PATIENCE, TokenBudget
from tests.core.fake_runner import Harness, make_config, make_sequence


def test_it_halves_what_was_too_much_and_grows_back() -> None:
    budget = TokenBudget(1000)
    assert budget.shrink(300)
    assert budget.tokens == 150
    for _ in range(PATIENCE - 1):
        budget.succeed()
    assert budget.tokens == 150
    budget.succeed()
    assert budget.tokens == 300
    for _ in range(2 * PATIENCE):
        budget.succeed()
    assert budget.tokens == 1000


def test_a_step_of_one_token_cannot_be_smaller() -> None:
    budget = TokenBudget(8)
    assert not budget.shrink(1)
    assert budget.tokens == 8


def test_a_step_taken_back_is_run_in_smaller_ones() -> None:
    """Sixteen tokens are too many, and so are eight: with four, two decodes and the prompts go on."""
    harness = Harness(make_config(max_num_seqs=4, max_num_batched_tokens=16))
    alone = Harness(make_config())
    for engine in (harness, alone):
        for name, length in (("a", 3), ("b", 14), ("c", 9)):
            engine.add(make_sequence(name, length, max_tokens=6, ignore_eos=True))
    alone.run()
    harness.step()
    while harness.scheduler.has_work():
        plan = harness.plan()
        if plan.num_tokens > 4:
            assert harness.starve(plan)
        else:
            harness.finish(plan)
    harness.expect_idle()
    assert {key: seen.token_ids for key, seen in harness.seen.items()} == {
        key: seen.token_ids for key, seen in alone.seen.items()
    }


def test_more_forks_than_tokens_take_turns() -> None:
    """Forks join a batch that has fewer tokens than sequences: 4 decodes of a budget of 3 left -1, which is true."""
    harness = Harness(make_config(max_num_seqs=4, max_num_batched_tokens=8))
    harness.add(make_sequence("a", 7, n=4, max_tokens=9, ignore_eos=True))
    assert harness.starve(harness.plan())
    while harness.scheduler.has_work():
        plan = harness.plan()
        assert 0 < plan.num_tokens <= 3
        harness.finish(plan)
    assert all(len(seen.token_ids) == 9 for seen in harness.seen.values())


def test_only_the_step_in_flight_is_taken_back() -> None:
    harness = Harness()
    harness.add(make_sequence("a", 5))
    plan = harness.plan()
    harness.finish(plan)
    with pytest.raises(RuntimeError, match="not the step in flight"):
        harness.scheduler.retreat(plan)


def test_the_last_resort_fails_the_request_alone() -> None:
    harness = Harness(make_config(max_num_batched_tokens=4, max_num_seqs=2))
    harness.add(make_sequence("a", 1, max_tokens=4, ignore_eos=True))
    harness.add(make_sequence("b", 1, max_tokens=4, ignore_eos=True))
    assert harness.starve(harness.plan())
    assert not harness.starve(harness.plan())
    harness.run()
    assert [seen.error for seen in harness.seen.values()] == ["out of memory", None]
    harness.expect_idle()
