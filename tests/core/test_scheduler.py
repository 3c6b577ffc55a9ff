"""Scheduler, one behaviour at a time."""

from __future__ import annotations

import pytest

from octavo.core.request import Sequence, Status
from octavo.core.step import RowResult, StepResult
from tests.core.fake_runner import EOS, Harness, draw, make_config, make_sequence


def expected_tokens(prompt: int, count: int, seed: int = 7, index: int = 0) -> list[int]:
    return [draw(seed, index, prompt + i) for i in range(count)]


# Ends


def test_max_tokens_ends_with_length() -> None:
    harness = Harness()
    harness.add(make_sequence(prompt=5, max_tokens=3))
    assert harness.run() == 3
    seen = harness.seen["a", 0]
    assert (seen.finish_reason, seen.stop_reason) == ("length", None)
    assert seen.token_ids == expected_tokens(5, 3)
    harness.expect_idle()


def test_end_of_sequence_stops() -> None:
    harness = Harness(sample=lambda seed, index, position: EOS if position == 7 else 9)
    harness.add(make_sequence(prompt=5, max_tokens=9))
    harness.run()
    seen = harness.seen["a", 0]
    assert (seen.token_ids, seen.finish_reason, seen.stop_reason) == ([9, 9, EOS], "stop", None)


def test_ignored_end_of_sequence_does_not_stop() -> None:
    harness = Harness(sample=lambda *_: EOS)
    harness.add(make_sequence(max_tokens=3, ignore_eos=True))
    harness.run()
    assert harness.seen["a", 0].token_ids == [EOS] * 3
    assert harness.seen["a", 0].finish_reason == "length"


def test_stop_token_stops_and_is_the_reason() -> None:
    harness = Harness(sample=lambda seed, index, position: position)
    harness.add(make_sequence(prompt=5, stop_token_ids=[7, 8]))
    harness.run()
    seen = harness.seen["a", 0]
    assert (seen.token_ids, seen.finish_reason, seen.stop_reason) == ([5, 6, 7], "stop", 7)


@pytest.mark.parametrize(("ignore_eos", "reason"), [(True, EOS), (False, None)])
def test_end_of_sequence_given_as_stop_token(ignore_eos: bool, reason: int | None) -> None:
    harness = Harness(sample=lambda *_: EOS)
    harness.add(make_sequence(stop_token_ids=[EOS], ignore_eos=ignore_eos))
    harness.run()
    assert (harness.seen["a", 0].finish_reason, harness.seen["a", 0].stop_reason) == ("stop", reason)


def test_no_stop_before_min_tokens() -> None:
    harness = Harness(sample=lambda seed, index, position: EOS if position % 2 else 8)
    harness.add(make_sequence("eos", 5, min_tokens=4))
    harness.add(make_sequence("stop", 5, min_tokens=4, stop_token_ids=[8], ignore_eos=True))
    harness.run()
    assert harness.seen["eos", 0].token_ids == [EOS, 8, EOS, 8, EOS]
    assert harness.seen["stop", 0].token_ids == [EOS, 8, EOS, 8]


# Budget


def test_long_prompt_is_chunked_and_decodes_go_on() -> None:
    harness = Harness()
    harness.add(make_sequence("short", 3, max_tokens=20))
    harness.step()
    harness.add(make_sequence("long", 60, max_tokens=1))
    for _ in range(4):
        plan = harness.plan()
        assert [row.num_samples for row in plan.rows] == ([1, 0] if plan.step_id < 5 else [1, 1])
        assert plan.num_tokens == 16 if plan.step_id < 5 else True
        harness.finish(plan)
    assert harness.seen["long", 0].finish_reason == "length"


def test_long_prefill_leaves_budget_to_short_prompts() -> None:
    harness = Harness()
    harness.add(make_sequence("long", 60, max_tokens=1))
    harness.step()
    harness.add(make_sequence("short", [9] * 5, max_tokens=1))
    plan = harness.plan()
    assert [(row.num_tokens, row.num_samples) for row in plan.rows] == [(11, 0), (5, 1)], "threshold, and what is left"


def test_alone_a_long_prefill_takes_the_whole_budget() -> None:
    harness = Harness()
    harness.add(make_sequence(prompt=60))
    for _ in range(3):
        harness.step()
    assert [plan.num_tokens for plan in harness.plans] == [16, 16, 16]


def test_partial_prefills_are_capped_and_short_prompts_pass() -> None:
    harness = Harness(make_config(max_num_partial_prefills=1, max_num_batched_tokens=24, max_num_seqs=8))
    for name, length in (("l1", 60), ("l2", 60), ("s", 6)):
        harness.add(make_sequence(name, length, max_tokens=1))
    plan = harness.plan()
    assert [new.request_id for new in plan.new] == ["l1", "s"]
    harness.finish(plan)
    harness.run()
    assert all(seen.finish_reason == "length" for seen in harness.seen.values())


def test_ends_of_prefills_do_not_wait_for_each_other() -> None:
    """A nearly finished prefill once had to wait for all chunks of a longer one before it."""
    harness = Harness(make_config(max_num_batched_tokens=8, long_prefill_token_threshold=6))
    harness.add(make_sequence("long", 200, max_tokens=1))
    harness.step()
    harness.add(make_sequence("short", [9] * 10, max_tokens=1))
    for _ in range(4):
        harness.step()
    assert harness.seen["short", 0].finish_reason == "length"


# Prefix cache


def test_second_request_finds_the_first_ones_blocks() -> None:
    harness = Harness()
    harness.add(make_sequence("a", 13, max_tokens=1))
    harness.run()
    harness.add(make_sequence("b", 13, max_tokens=1))
    harness.step()
    assert harness.plans[-1].rows[0].start == 12
    assert harness.seen["b", 0].num_cached_tokens == 12
    stats = harness.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (26, 12)


def test_last_prompt_token_is_always_computed() -> None:
    harness = Harness()
    for name in ("a", "b"):
        harness.add(make_sequence(name, 12, max_tokens=1))
        harness.run()
    assert harness.plans[-1].rows[0].start == 8, "12 tokens are three full blocks; the third must be computed"


def test_output_is_found_too() -> None:
    harness = Harness()
    harness.add(make_sequence("a", 5, max_tokens=8))
    harness.run()
    answer = harness.seen["a", 0].token_ids
    harness.add(make_sequence("b", [1, 2, 3, 4, 5, *answer, 1], max_tokens=1))
    harness.run()
    assert harness.seen["b", 0].num_cached_tokens == 12


@pytest.mark.parametrize(("one", "other", "hits"), [("x", "x", 8), ("x", "y", 0), ("x", None, 0), (None, "", 0)])
def test_salts_keep_requests_apart(one: str | None, other: str | None, hits: int) -> None:
    harness = Harness()
    for name, salt in (("a", one), ("b", other)):
        harness.add(make_sequence(name, 10, max_tokens=1, cache_salt=salt))
        harness.run()
    assert harness.seen["b", 0].num_cached_tokens == hits


def test_caching_switched_off() -> None:
    harness = Harness(make_config(enable_prefix_caching=False))
    for name in ("a", "b"):
        harness.add(make_sequence(name, 10, max_tokens=1))
        harness.run()
    assert harness.seen["b", 0].num_cached_tokens == 0
    assert harness.scheduler.stats().prefix_cache_queries == 0


def test_failed_step_publishes_nothing() -> None:
    harness = Harness()
    harness.add(make_sequence("a", 10))
    harness.step(errors={0: "out of memory"})
    harness.add(make_sequence("b", 10, max_tokens=1))
    harness.run()
    assert harness.seen["b", 0].num_cached_tokens == 0


def test_step_aborted_in_flight_publishes_nothing() -> None:
    harness = Harness()
    harness.add(make_sequence("a", 10))
    plan = harness.plan()
    harness.abort("a")
    harness.finish(plan)
    harness.add(make_sequence("b", 10, max_tokens=1))
    harness.run()
    assert harness.seen["b", 0].num_cached_tokens == 0


def test_cached_blocks_are_not_counted_twice_at_admission() -> None:
    """A prefix found in free blocks saves computing, not room: taking it makes those blocks unavailable."""
    harness = Harness(make_config(num_blocks=6))
    harness.add(make_sequence("a", 16, max_tokens=1))
    harness.run()
    harness.add(make_sequence("running", [40] * 8, max_tokens=9))
    harness.step()
    harness.add(make_sequence("b", 16, max_tokens=1))
    plan = harness.plan()
    assert not plan.new
    harness.finish(plan)
    harness.run()
    assert harness.scheduler.stats().num_preemptions == 0


def test_tails_are_forgotten_before_heads() -> None:
    harness = Harness(make_config(num_blocks=6))
    harness.add(make_sequence("a", 16, max_tokens=1))
    harness.run()
    harness.add(make_sequence("other", [40 + i for i in range(16)], max_tokens=1))
    harness.run()
    harness.add(make_sequence("b", 16, max_tokens=1))
    harness.run()
    assert harness.seen["b", 0].num_cached_tokens == 8, "4 of 6 blocks were needed: two free ones and a's last two"


# Prompt logprobs


def prompt_logprob_tokens(harness: Harness, name: str) -> list[int]:
    return [entry.token_ids[0] for entry in harness.seen[name, 0].prompt_logprobs]


def test_prompt_logprobs_come_whole_over_chunks() -> None:
    harness = Harness()
    harness.add(make_sequence(prompt=40, prompt_logprobs=1, max_tokens=2))
    outputs = harness.step()
    assert [(output.token_ids, len(output.prompt_logprobs or [])) for output in outputs] == [([], 16)]
    harness.run()
    assert prompt_logprob_tokens(harness, "a") == list(range(2, 41))


def test_prompt_logprobs_do_not_read_the_cache() -> None:
    harness = Harness()
    for name in ("a", "b"):
        harness.add(make_sequence(name, 14, prompt_logprobs=0, max_tokens=1))
        harness.run()
    assert harness.seen["b", 0].num_cached_tokens == 0
    assert prompt_logprob_tokens(harness, "b") == list(range(2, 15))


def test_partial_prefills_without_prompt_logprobs_are_silent() -> None:
    harness = Harness()
    harness.add(make_sequence(prompt=40))
    assert harness.step() == []


# Forks


def test_forks_share_the_prompt_and_copy_only_the_last_block() -> None:
    harness = Harness()
    harness.add(make_sequence(prompt=10, n=3, max_tokens=4, logprobs=0))
    harness.step()
    plan = harness.plan()
    assert len(plan.new) == 2
    assert len(plan.block_copies) == 2, "the last owner writes in place"
    assert len({tuple(row.table[:2]) for row in harness.runner.rows.values()}) == 1
    harness.finish(plan)
    pool = harness.scheduler.stats()
    assert pool.kv_usage == 5 / 64
    harness.run()
    for index in range(3):
        seen = harness.seen["a", index]
        assert seen.token_ids == expected_tokens(10, 4, index=index)
        assert [entry.token_ids[0] for entry in seen.logprobs] == seen.token_ids
    harness.expect_idle()


def test_forks_of_a_full_last_block_copy_nothing() -> None:
    harness = Harness()
    harness.add(make_sequence(prompt=8, n=3, max_tokens=4))
    harness.run()
    assert not any(plan.block_copies for plan in harness.plans)


def test_n_slots_are_kept_for_n_sequences() -> None:
    harness = Harness()
    harness.add(make_sequence("n", 30, n=3, max_tokens=2))
    harness.add(make_sequence("b", 3, max_tokens=9))
    harness.add(make_sequence("c", 3, max_tokens=9))
    harness.step()
    assert harness.scheduler.stats().num_waiting == 1
    harness.run()
    assert all(seen.finish_reason == "length" for seen in harness.seen.values())


def test_forks_end_alone() -> None:
    harness = Harness(sample=lambda seed, index, position: EOS if position == 5 + index else 9)
    harness.add(make_sequence(prompt=5, n=3))
    harness.run()
    assert [harness.seen["a", i].token_ids for i in range(3)] == [[EOS], [9, EOS], [9, 9, EOS]]
    harness.expect_idle()


@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_of_n_is_aborted_before_the_fork(index: int) -> None:
    harness = Harness()
    harness.add(make_sequence(prompt=20, n=3, max_tokens=2, prompt_logprobs=0))
    harness.step()
    assert [output.index for output in harness.abort("a", index)] == [index]
    assert harness.abort("a", index) == []
    harness.run()
    for i in range(3):
        assert harness.seen["a", i].finish_reason == ("abort" if i == index else "length")
    harness.expect_idle()


def test_all_of_n_aborted_one_by_one() -> None:
    harness = Harness()
    harness.add(make_sequence(prompt=20, n=2))
    plan = harness.plan()
    harness.abort("a", 1)
    assert harness.scheduler.has_work()
    harness.abort("a", 0)
    assert not harness.scheduler.has_work()
    assert harness.finish(plan) == []
    harness.expect_idle()


# Aborts and errors


def test_abort_while_waiting_prefilling_and_decoding() -> None:
    harness = Harness(make_config(max_num_seqs=2))
    harness.add(make_sequence("decoding", 3))
    harness.step()
    harness.add(make_sequence("prefilling", 60))
    harness.step()
    harness.add(make_sequence("waiting", 3))
    for name in ("decoding", "prefilling", "waiting"):
        assert [output.finish_reason for output in harness.abort(name)] == ["abort"]
    harness.expect_idle()


def test_abort_of_the_unknown_does_nothing() -> None:
    harness = Harness()
    harness.add(make_sequence("a"))
    assert harness.abort("b") == []
    assert harness.abort("a", 3) == []


def test_slot_aborted_in_flight_is_announced_before_it_is_reused() -> None:
    harness = Harness(make_config(max_num_seqs=1))
    harness.add(make_sequence("a", 5))
    plan = harness.plan()
    harness.abort("a")
    harness.add(make_sequence("b", 5, max_tokens=1))
    assert harness.finish(plan) == []
    plan = harness.plan()
    assert (plan.freed_slots, [new.slot for new in plan.new]) == ([0], [0])


def test_same_id_again_while_the_old_step_is_in_flight() -> None:
    """The results of the aborted request must not reach the one that took its id over."""
    harness = Harness()
    harness.add(make_sequence("a", 5))
    plan = harness.plan()
    harness.abort("a")
    harness.add(make_sequence("a", 6, max_tokens=2))
    assert harness.finish(plan, errors={0: "late"}) == []
    harness.run()
    assert harness.seen["a", 0].token_ids == expected_tokens(6, 2)


def test_row_error_fails_its_request_alone() -> None:
    harness = Harness()
    harness.add(make_sequence("n", 5, n=2, max_tokens=5))
    harness.add(make_sequence("b", 5, max_tokens=5))
    harness.step()
    plan = harness.plan()
    broken = next(place for place, row in enumerate(plan.rows) if harness.runner.rows.get(row.slot) is None)
    harness.finish(plan, errors={broken: "nan"})
    for index in range(2):
        assert (harness.seen["n", index].finish_reason, harness.seen["n", index].error) == ("abort", "nan")
    harness.run()
    assert harness.seen["b", 0].finish_reason == "length"
    assert harness.seen["b", 0].error is None


def test_steps_come_in_order() -> None:
    harness = Harness()
    harness.add(make_sequence())
    plan = harness.plan()
    with pytest.raises(RuntimeError, match="in flight"):
        harness.scheduler.plan(0.0)
    with pytest.raises(RuntimeError, match="does not belong"):
        harness.scheduler.update(plan, StepResult(plan.step_id + 1, []), 0.0)
    with pytest.raises(RuntimeError, match="1 rows, but 0 results"):
        harness.scheduler.update(plan, StepResult(plan.step_id, []), 0.0)
    harness.finish(plan)
    with pytest.raises(RuntimeError, match="does not belong"):
        harness.scheduler.update(plan, StepResult(plan.step_id, [RowResult([1])]), 0.0)


# Preemption and order


def run_until_preempted(harness: Harness, sequences: list[Sequence]) -> Sequence:
    for sequence in sequences:
        harness.add(sequence)
    for _ in range(200):
        harness.step()
        for sequence in sequences:
            if sequence.status is Status.PREEMPTED:
                return sequence
    raise AssertionError("nobody was preempted")


def test_out_of_blocks_the_cheapest_to_recompute_goes() -> None:
    harness = Harness(make_config(num_blocks=18, enable_prefix_caching=False))
    lengths = {"a": 2, "b": 10, "c": 4, "d": 12}
    sequences = [make_sequence(name, length, max_tokens=48) for name, length in lengths.items()]
    victim = run_until_preempted(harness, sequences)
    assert victim.request_id == "c", "a is cheaper, but the first to come is never the victim"
    assert not victim.block_ids
    harness.run()
    for name, length in lengths.items():
        assert harness.seen[name, 0].token_ids == expected_tokens(length, 48)
    assert harness.scheduler.stats().num_preemptions == sum(sequence.num_preemptions for sequence in sequences)
    assert sequences[0].num_preemptions == 0


def test_out_of_blocks_the_lowest_priority_goes() -> None:
    harness = Harness(make_config(num_blocks=18, policy="priority", enable_prefix_caching=False))
    fields = {"l": (12, 9), "m": (4, 5), "h": (8, 1)}
    sequences = [make_sequence(name, n, max_tokens=48, priority=p) for name, (n, p) in fields.items()]
    assert run_until_preempted(harness, sequences).request_id == "l", "m is cheaper, but ranks higher"
    harness.run()
    assert sequences[2].num_preemptions == 0


def test_preempted_sequence_finds_its_own_blocks_again() -> None:
    harness = Harness(make_config(num_blocks=12))
    sequences = [make_sequence(name, [k] * 9, max_tokens=36) for k, name in enumerate("ab", 1)]
    victim = run_until_preempted(harness, sequences)
    harness.run()
    plan = next(plan for plan in harness.plans[2:] if plan.new)
    assert plan.new[0].request_id == victim.request_id
    assert len(plan.new[0].token_ids) > 9, "the output so far comes along"
    start = next(row.start for row in plan.rows if row.slot == plan.new[0].slot)
    assert start > 0
    assert victim.num_cached_tokens == 0, "counted when first scheduled only"


def test_priority_order_of_admission() -> None:
    harness = Harness(make_config(max_num_seqs=1, policy="priority"))
    for name, priority, arrival in (("c", 5, 0.0), ("b", 0, 2.0), ("a", 0, 1.0), ("z", -1, 3.0)):
        harness.now = 3.0
        harness.add(make_sequence(name, 3, max_tokens=1, priority=priority, arrival_time=arrival))
    harness.run()
    assert [plan.new[0].request_id for plan in harness.plans] == ["z", "a", "b", "c"]


def test_fcfs_ignores_priority() -> None:
    harness = Harness(make_config(max_num_seqs=1))
    for name, priority in (("a", 5), ("b", 0)):
        harness.add(make_sequence(name, 3, max_tokens=1, priority=priority))
    harness.run()
    assert [plan.new[0].request_id for plan in harness.plans] == ["a", "b"]


def test_first_scheduled_time_is_the_plans() -> None:
    harness = Harness()
    harness.now = 3.5
    harness.add(make_sequence(max_tokens=2))
    harness.run()
    assert harness.seen["a", 0].first_scheduled_time == 3.5


def test_resumed_sequence_goes_on_where_it_was() -> None:
    harness = Harness()
    whole = expected_tokens(5, 6, index=1)
    harness.add(make_sequence(prompt=5, output=whole[:3], index=1, n=2, max_tokens=6))
    harness.run()
    assert harness.seen["a", 1].token_ids == whole[3:]
    assert harness.plans[0].new[0].num_prompt_tokens == 5


def test_resumed_sequence_does_not_repeat_its_prompt_logprobs() -> None:
    harness = Harness()
    harness.add(make_sequence(prompt=5, output=expected_tokens(5, 1), prompt_logprobs=0, max_tokens=6))
    harness.run()
    assert harness.seen["a", 0].prompt_logprobs == []
    assert len(harness.seen["a", 0].token_ids) == 5


# Stats


def test_stats() -> None:
    harness = Harness(make_config(num_blocks=10, max_num_seqs=1))
    harness.add(make_sequence("a", 5, max_tokens=9))
    harness.add(make_sequence("b", 5, max_tokens=9))
    harness.step()
    stats = harness.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (1, 1)
    assert (stats.kv_usage, stats.kv_waste) == (2 / 10, 3 / 8)


def test_waste_counts_a_shared_block_once() -> None:
    harness = Harness()
    harness.add(make_sequence(prompt=5, n=4, max_tokens=9))
    harness.step()
    assert harness.scheduler.stats().kv_waste == 3 / 8
