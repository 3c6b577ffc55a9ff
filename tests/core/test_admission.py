"""What can never run is refused with the numbers; everything else gets a max_tokens it can reach."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.errors import ConfigError, RequestError
from tests.core.fake_runner import Harness, make_config, make_sequence


@pytest.mark.parametrize(
    ("config", "sequence", "param", "code", "numbers"),
    [
        ({}, {"prompt": 0}, "prompt", None, ["empty"]),
        ({"max_model_len": 8}, {"prompt": 8}, "prompt", "context_length_exceeded", ["has 8 tokens", "of 8 tokens"]),
        ({"max_model_len": 8}, {"prompt": 20}, "prompt", "context_length_exceeded", ["has 20 tokens", "of 8 tokens"]),
        ({"num_blocks": 2}, {"prompt": 9}, "prompt", "context_length_exceeded", ["has 9 tokens", "only 8"]),
        ({"max_num_seqs": 2}, {"n": 3}, "n", None, ["n is 3", "at most 2"]),
        ({"num_blocks": 4}, {"prompt": 9, "n": 3}, "n", None, ["n is 3", "9 tokens", "20 tokens", "holds 16"]),
        ({}, {"output": [1, 2], "max_tokens": 2}, "max_tokens", None, ["2 output tokens", "only 2"]),
    ],
)
def test_refused(config: dict[str, Any], sequence: dict[str, Any], param: str, code: str, numbers: list[str]) -> None:
    scheduler = Scheduler(make_config(**config))
    with pytest.raises(RequestError) as caught:
        scheduler.add(make_sequence(**sequence), 0.0)
    assert (caught.value.param, caught.value.code) == (param, code)
    for number in numbers:
        assert number in caught.value.message
    assert not scheduler.has_work()
    scheduler.check_invariants()


def test_resumed_sequences_come_one_by_one() -> None:
    sequence = make_sequence(n=2, output=[3])
    sequence.num_sequences = 2
    with pytest.raises(RequestError, match="one by one"):
        Scheduler(make_config()).add(sequence, 0.0)


@pytest.mark.parametrize(
    ("config", "asked", "given"),
    [
        ({"max_model_len": 20}, None, 15),
        ({"max_model_len": 20}, 4, 4),
        ({"max_model_len": 20}, 400, 15),
        ({"num_blocks": 2}, None, 4),
        ({"num_blocks": 2}, 400, 4),
    ],
)
def test_max_tokens_is_what_there_is_room_for(config: dict[str, Any], asked: int | None, given: int) -> None:
    harness = Harness(make_config(**config))
    sequence = make_sequence(prompt=5, max_tokens=asked)
    harness.add(sequence)
    assert sequence.max_tokens == given
    harness.run()
    assert len(harness.seen["a", 0].token_ids) == given
    assert harness.seen["a", 0].finish_reason == "length"


def test_forks_for_one_token_need_no_blocks_of_their_own() -> None:
    harness = Harness(make_config(num_blocks=2))
    harness.add(make_sequence(prompt=8, n=4, max_tokens=1))
    harness.run()
    assert all(len(harness.seen["a", i].token_ids) == 1 for i in range(4))


def test_request_ids_are_unique_while_in_use() -> None:
    harness = Harness()
    harness.add(make_sequence("a", n=3))
    for index in range(3):
        with pytest.raises(RequestError, match="request id 'a'"):
            harness.scheduler.add(make_sequence("a", index=index), 0.0)
    harness.abort("a")
    harness.add(make_sequence("a", index=1))
    harness.add(make_sequence("a", index=0))
    with pytest.raises(RequestError, match="already in use"):
        harness.scheduler.add(make_sequence("a", n=2), 0.0)


def test_config_from_the_engine() -> None:
    engine = EngineConfig(model="m", max_num_batched_tokens=300, scheduling_policy="priority")
    config = SchedulerConfig.from_engine(engine, num_blocks=7, max_model_len=99, eos_token_ids=frozenset({2}))
    assert (config.long_prefill_token_threshold, config.policy, config.kv_capacity) == (150, "priority", 112)
    engine = EngineConfig(model="m", long_prefill_token_threshold=9)
    config = SchedulerConfig.from_engine(engine, num_blocks=7, max_model_len=99, eos_token_ids=frozenset())
    assert config.long_prefill_token_threshold == 9


@pytest.mark.parametrize("name", ["max_num_seqs", "num_blocks", "block_size", "max_model_len"])
def test_config_refuses_nothing_at_all(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        make_config(**{name: 0})


def test_config_refuses_a_budget_that_stalls_decodes() -> None:
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(3\) is below max_num_seqs \(4\)"):
        make_config(max_num_batched_tokens=3)
