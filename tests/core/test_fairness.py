"""Nobody waits for ever, and a small cache slows the whole down in proportion, not to a standstill."""

from __future__ import annotations

import random
from typing import Any

import pytest

from octavo.core.scheduler import Scheduler
from octavo.core.step import RowResult, StepResult
from tests.core.fake_runner import Harness, make_config, make_sequence


@pytest.mark.parametrize("blocked", ["blocks", "slots", "partial prefills"])
def test_blocked_head_is_not_passed_for_ever(blocked: str) -> None:
    """A stream of small requests that always fit must not starve the large one before them."""
    config = make_config(
        num_blocks=24, max_num_partial_prefills=1, max_num_batched_tokens=8, enable_prefix_caching=False
    )
    harness = Harness(config)
    large = {"blocks": {"prompt": 80}, "slots": {"prompt": 4, "n": 4}, "partial prefills": {"prompt": 40}}[blocked]
    harness.add(make_sequence("filler", 30, max_tokens=4))
    for i in range(2):
        harness.add(make_sequence(f"first{i}", 4, max_tokens=30))
    harness.step()
    harness.add(make_sequence("large", **large, max_tokens=2, arrival_time=0.001))
    for i in range(400):
        harness.add(make_sequence(f"small{i}", 4, max_tokens=4, arrival_time=harness.now))
        harness.step()
        if all(harness.seen["large", k].finish_reason for k in range(large.get("n", 1))):
            break
    else:
        pytest.fail("the large request starved")


def test_short_requests_pass_a_blocked_head_at_first() -> None:
    harness = Harness(make_config(num_blocks=12, enable_prefix_caching=False))
    harness.add(make_sequence("running", 16, max_tokens=20))
    harness.step()
    harness.add(make_sequence("large", 40, max_tokens=2))
    harness.add(make_sequence("small", 4, max_tokens=2))
    harness.step()
    assert [new.request_id for new in harness.plans[-1].new] == ["small"]


def simulate(num_blocks: int, caching: bool = True, n: int = 1) -> tuple[float, float]:
    """Tokens a simulated second and share of tokens computed again; a step costs 10 ms and 0.25 ms a token."""
    rng = random.Random(0)
    config = make_config(
        max_num_seqs=32,
        max_num_batched_tokens=512,
        long_prefill_token_threshold=256,
        max_num_partial_prefills=4,
        block_size=16,
        num_blocks=num_blocks,
        max_model_len=2048,
        enable_prefix_caching=caching,
    )
    scheduler, now = Scheduler(config), 0.0
    useful = generated = computed = 0
    for i in range(48):
        prompt = [rng.randrange(1, 1000) for _ in range(rng.randint(32, 512))]
        count = rng.randint(16, 256)
        fields: dict[str, Any] = {"max_tokens": count, "ignore_eos": True, "n": n}
        scheduler.add(make_sequence(f"r{i}", prompt, **fields), now)
        useful += len(prompt) + count * n
        generated += count * n
    while scheduler.has_work():
        plan = scheduler.plan(now)
        assert plan.rows
        computed += plan.num_tokens
        now += 0.01 + 0.00025 * plan.num_tokens
        result = StepResult(plan.step_id, [RowResult([5] * row.num_samples) for row in plan.rows])
        scheduler.update(plan, result, now)
    scheduler.check_invariants()
    assert scheduler.stats().kv_usage == 0
    return generated / now, computed / useful - 1


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(
    ("num_blocks", "least_speed", "most_recomputed"),
    [(49, 0.13, 0.6), (96, 0.28, 0.4), (192, 0.5, 0.25), (384, 0.7, 0.1)],
)
def test_small_caches_slow_down_gracefully(
    num_blocks: int, caching: bool, least_speed: float, most_recomputed: float
) -> None:
    """All 48 requests at once would hold some 750 blocks. With 49, one or two fit at a time."""
    ample, _ = simulate(2048, caching)
    speed, recomputed = simulate(num_blocks, caching)
    assert speed > least_speed * ample
    assert recomputed < most_recomputed


def test_forks_in_a_small_cache() -> None:
    ample, _ = simulate(4096, n=4)
    speed, recomputed = simulate(128, n=4)
    assert speed > 0.4 * ample
    assert recomputed < 0.35
