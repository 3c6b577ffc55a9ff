"""Limits read from made-up file trees of both versions of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.execution.control_groups import cpu_quota, memory_left
from octavo.execution.memory import available_memory


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_version_2(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    write(tmp_path, {"proc/self/cgroup": "0::/", f"{base}/memory.max": "1000", f"{base}/memory.current": "600"})
    assert memory_left(tmp_path) == 400
    write(tmp_path, {f"{base}/memory.stat": "anon 300\ninactive_file 250"})
    assert memory_left(tmp_path) == 650
    assert available_memory(tmp_path) == 650
    write(tmp_path, {f"{base}/memory.current": "2000"})
    assert memory_left(tmp_path) == 0
    write(tmp_path, {f"{base}/memory.max": "max"})
    assert memory_left(tmp_path) is None
    write(tmp_path, {f"{base}/cpu.max": "150000 100000"})
    assert cpu_quota(tmp_path) == 1.5
    write(tmp_path, {f"{base}/cpu.max": "max 100000"})
    assert cpu_quota(tmp_path) is None


def test_version_1(tmp_path: Path) -> None:
    memory, cpu = "sys/fs/cgroup/memory", "sys/fs/cgroup/cpu"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/\n3:cpu,cpuacct:/\n0::/",
            f"{memory}/memory.limit_in_bytes": "1000",
            f"{memory}/memory.usage_in_bytes": "1200",
            f"{memory}/memory.stat": "inactive_file 9\ntotal_inactive_file 500",
            f"{cpu}/cpu.cfs_quota_us": "400000",
            f"{cpu}/cpu.cfs_period_us": "100000",
        },
    )
    assert memory_left(tmp_path) == 300
    assert cpu_quota(tmp_path) == 4
    write(tmp_path, {f"{memory}/memory.limit_in_bytes": str(0x7FFFFFFFFFFFF000), f"{cpu}/cpu.cfs_quota_us": "-1"})
    assert memory_left(tmp_path) is None
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize("tight", ["slice", "slice/service", "slice/service/worker"])
def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path, tight: str) -> None:
    """A service's limit stands in its own group or in any above, not at the mount point."""
    files = {"proc/self/cgroup": "0::/slice/service/worker"}
    for group in ("slice", "slice/service", "slice/service/worker", "other"):
        base = f"sys/fs/cgroup/{group}"
        files[f"{base}/memory.max"] = "500" if group == tight else "10" if group == "other" else "10000"
        files[f"{base}/memory.current"] = "100" if group != "other" else "9"
        files[f"{base}/cpu.max"] = "200000 100000" if group == tight else "max 100000"
    write(tmp_path, files)
    assert memory_left(tmp_path) == 400
    assert cpu_quota(tmp_path) == 2


def test_a_container_that_cannot_see_its_own_path(tmp_path: Path) -> None:
    """The kernel reports the host's path; what is mounted is the container's own group."""
    base = "sys/fs/cgroup/memory"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/0123",
            f"{base}/memory.limit_in_bytes": "700",
            f"{base}/memory.usage_in_bytes": "100",
        },
    )
    assert memory_left(tmp_path) == 600


def test_both_versions_at_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/a\n0::/b",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "700",
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "100",
            "sys/fs/cgroup/b/memory.max": "300",
            "sys/fs/cgroup/b/memory.current": "1",
        },
    )
    assert memory_left(tmp_path) == 299


@pytest.mark.parametrize("text", ["", "nonsense", "4:memory", "0::/../../etc"])
def test_no_or_unreadable_control_groups(tmp_path: Path, text: str) -> None:
    assert memory_left(tmp_path) is None
    write(tmp_path, {"proc/self/cgroup": text, "sys/fs/cgroup/memory.max": "?", "sys/fs/cgroup/cpu.max": ""})
    assert memory_left(tmp_path) is None
    assert cpu_quota(tmp_path) is None
    assert available_memory(tmp_path) > 0
