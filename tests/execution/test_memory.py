"""How large the cache becomes: arithmetic, and reading control groups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.execution.memory import (
    available_memory,
    cgroup_cpu_quota,
    cgroup_memory_left,
    cpu_budget,
    gpu_budget,
    size_kv_cache,
)
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


def test_control_group_version_2(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("600\n")
    assert cgroup_memory_left(tmp_path) == 400
    (tmp_path / "memory.stat").write_text("anon 300\ninactive_file 250\n")
    assert cgroup_memory_left(tmp_path) == 650
    assert available_memory(tmp_path) == 650
    (tmp_path / "memory.max").write_text("max\n")
    assert cgroup_memory_left(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cgroup_cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cgroup_cpu_quota(tmp_path) is None


def test_control_group_version_1(tmp_path: Path) -> None:
    for folder in ("memory", "cpu"):
        (tmp_path / folder).mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("1000\n")
    (tmp_path / "memory/memory.usage_in_bytes").write_text("1200\n")
    assert cgroup_memory_left(tmp_path) == 0
    (tmp_path / "memory/memory.stat").write_text("total_inactive_file 500\n")
    assert cgroup_memory_left(tmp_path) == 300
    (tmp_path / "memory/memory.limit_in_bytes").write_text(f"{0x7FFFFFFFFFFFF000}\n")
    assert cgroup_memory_left(tmp_path) is None
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_cpu_quota(tmp_path) is None
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("400000\n")
    assert cgroup_cpu_quota(tmp_path) == 4


def test_no_control_group(tmp_path: Path) -> None:
    assert cgroup_memory_left(tmp_path) is None
    assert cgroup_cpu_quota(tmp_path) is None
    assert available_memory(tmp_path) > 0


def test_default_threads_follow_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert default_num_threads() == 1
    monkeypatch.setattr("octavo.execution.threads._core_of", lambda cpu: str(cpu // 2))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("octavo.execution.threads.cgroup_cpu_quota", lambda: None)
    assert default_num_threads() == 4
    monkeypatch.setattr("octavo.execution.threads.cgroup_cpu_quota", lambda: 2.7)
    assert default_num_threads() == 2
    monkeypatch.setattr("octavo.execution.threads.cgroup_cpu_quota", lambda: 0.5)
    assert default_num_threads() == 1
