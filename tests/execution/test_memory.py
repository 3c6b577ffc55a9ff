"""How large the cache becomes, and how many threads compute: arithmetic."""

from __future__ import annotations

import pytest

from octavo.errors import ConfigError
from octavo.execution.memory import cpu_budget, gpu_budget, size_kv_cache
from octavo.execution.threads import default_num_threads

GIB = 1 << 30


def size(budget: int, seqs: int = 8) -> int:
    return size_kv_cache(
        budget, bytes_per_block=1000, block_size=16, max_model_len=100, max_num_seqs=seqs, knob="kv_cache_memory_bytes"
    ).num_blocks


def test_as_many_blocks_as_fit_and_no_more_than_can_be_used() -> None:
    assert size(10_999) == 10
    # 100 tokens are 7 blocks of 16; 8 sequences can use 56.
    assert size(10**9) == 56
    assert size(2000) == 2


@pytest.mark.parametrize("budget", [1999, 0, -5])
def test_too_little_memory_is_said_with_the_numbers_and_the_knob(budget: int) -> None:
    with pytest.raises(ConfigError, match=r"at least 0\.0 MiB \(2 blocks of 16 tokens\): raise kv_cache_memory_bytes"):
        size(budget)


def test_budgets() -> None:
    assert cpu_budget(10 * GIB + (512 << 20), 0.5) == 5 * GIB
    assert cpu_budget(100, 0.5) == 0
    # 80 GiB, 0.9 of it ours, 16 GiB taken by weights, 1 GiB for activations.
    assert gpu_budget(80 * GIB, 64 * GIB, 0.9, GIB) == int(80 * GIB * 0.9) - 17 * GIB


def test_default_threads_follow_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert default_num_threads() == 1
    monkeypatch.setattr("octavo.execution.threads._core_of", lambda cpu: str(cpu // 2))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("octavo.execution.threads.cpu_quota", lambda: None)
    assert default_num_threads() == 4
    monkeypatch.setattr("octavo.execution.threads.cpu_quota", lambda: 2.7)
    assert default_num_threads() == 2
    monkeypatch.setattr("octavo.execution.threads.cpu_quota", lambda: 0.5)
    assert default_num_threads() == 1
