"""A crowd in a small cache: many long sequences and forks at once, so that blocks run out in every pass of a plan."""

from __future__ import annotations

import random

import pytest

from tests.core.fake_runner import Harness, draw, make_config, make_sequence


@pytest.mark.parametrize("seed", range(24))
def test_a_crowd_gets_through_a_small_cache(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone ends with the tokens of a run alone, after many preemptions, also of rows and copies already planned."""
    rng = random.Random(seed)
    monkeypatch.setattr("octavo.core.planner.HEADROOM_TOKENS", rng.choice([0, 24]))
    config = make_config(
        max_num_seqs=8,
        max_num_batched_tokens=rng.choice([8, 12, 24]),
        long_prefill_token_threshold=rng.choice([2, 6]),
        max_num_partial_prefills=3,
        policy=rng.choice(["fcfs", "priority"]),
        num_blocks=rng.randint(26, 40),
        enable_prefix_caching=rng.random() < 0.5,
    )
    harness = Harness(config)
    sequences = [
        make_sequence(
            f"r{i}",
            [rng.randint(1, 2) for _ in range(rng.randint(1, 60))],
            n=rng.choice([1, 2, 4, 6]),
            max_tokens=rng.randint(20, 60),
            priority=rng.randint(0, 2),
            prompt_logprobs=rng.choice([None, 0]),
            seed=i,
        )
        for i in range(12)
    ]
    for sequence in sequences:
        harness.add(sequence)
    harness.run(8000)
    assert harness.scheduler.stats().num_preemptions > 3
    for sequence in sequences:
        for index in range(sequence.params.n):
            seen = harness.seen[sequence.request_id, index]
            expected = [draw(sequence.seed, index, sequence.num_prompt_tokens + k) for k in range(sequence.max_tokens)]
            assert (seen.finish_reason, seen.token_ids) == ("length", expected)
        if sequence.params.prompt_logprobs is not None:
            reported = [entry.token_ids[0] for entry in harness.seen[sequence.request_id, 0].prompt_logprobs]
            assert reported == sequence.token_ids[1 : sequence.num_prompt_tokens]
    harness.expect_idle()
