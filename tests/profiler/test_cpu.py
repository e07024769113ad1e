"""The processor and what control groups leave of it, read from texts as Linux writes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spectune.profiler.cpu import (
    allowed_cores,
    available_bytes,
    cpu_allowance,
    last_level_cache_bytes,
    memory_left,
    processor_here,
    read_cpuinfo,
)

TWO_SOCKETS = """processor\t: 0
model name\t: Test CPU
cpu MHz\t\t: 2000.500
physical id\t: 0
flags\t\t: sse avx512_bf16 avx2

processor\t: 1
model name\t: Second
cpu MHz\t\t: 3000.000
physical id\t: 1
flags\t\t: sse
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files below a folder and return it."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_an_x86_processor_is_read_from_its_first_core() -> None:
    processor = read_cpuinfo(TWO_SOCKETS)
    assert (processor.name, processor.isa) == ("Test CPU", ("avx2", "avx512_bf16"))


def test_sockets_and_clocks_are_counted_over_all_cores() -> None:
    processor = read_cpuinfo(TWO_SOCKETS)
    assert (processor.sockets, processor.clocks_mhz) == (2, ((0, 2000.5), (1, 3000.0)))


def test_an_arm_processor_is_read_from_its_features_and_has_no_sockets() -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd bf16 sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    processor = read_cpuinfo(text)
    assert (processor.name, processor.isa) == ("CPU implementer 0x41 CPU part 0xd40", ("asimd", "bf16", "sve"))
    assert (processor.sockets, processor.clocks_mhz) == (None, ())


def test_a_system_without_cpuinfo_still_has_a_processor_with_a_name() -> None:
    assert read_cpuinfo("").name


def test_this_machine_has_a_clock_for_no_more_cores_than_it_has() -> None:
    assert {core for core, _ in processor_here().clocks_mhz} <= set(range(os.cpu_count() or 1))


def caches() -> dict[str, str]:
    """Return what a kernel says of three cores, the first two of which share their outermost cache."""
    files: dict[str, str] = {}
    for core, shared in ((0, "0-1"), (1, "0-1"), (2, "2")):
        for index, (level, size, cores) in enumerate(((1, "32K", str(core)), (3, "16M", shared))):
            place = f"cpu{core}/cache/index{index}"
            files |= {f"{place}/level": f"{level}\n", f"{place}/size": f"{size}\n"}
            files[f"{place}/shared_cpu_list"] = f"{cores}\n"
    return files


def test_the_outermost_caches_are_added_and_a_shared_one_counts_once(tmp_path: Path) -> None:
    tree(tmp_path, caches())
    assert last_level_cache_bytes([0, 1, 2], tmp_path) == 2 * 16 * 2**20
    assert last_level_cache_bytes([0], tmp_path) == 16 * 2**20


def test_caches_the_system_does_not_describe_are_unknown(tmp_path: Path) -> None:
    assert last_level_cache_bytes([0], tmp_path) is None


@pytest.mark.parametrize(
    ("hidden", "told"),
    [("index0/size", 16 * 2**20), ("index0/level", 16 * 2**20), ("index1/size", None), ("size", None)],
)
def test_a_size_that_the_kernel_hides_is_missed_of_the_outermost_caches_alone(
    tmp_path: Path, hidden: str, told: int | None
) -> None:
    tree(tmp_path, {name: text for name, text in caches().items() if not name.endswith(hidden)})
    assert last_level_cache_bytes([0, 1], tmp_path) == told


def test_a_core_that_hides_the_size_of_its_cache_leaves_the_sum_unknown(tmp_path: Path) -> None:
    files = caches()
    del files["cpu2/cache/index1/size"]
    tree(tmp_path, files)
    assert last_level_cache_bytes([0, 1, 2], tmp_path) is None


def test_the_allowed_cores_are_those_of_the_scheduler() -> None:
    assert allowed_cores() == os.sched_getaffinity(0)


@pytest.mark.parametrize(("limit", "quota"), [("150000 100000\n", 1.5), ("max 100000\n", None)])
def test_a_quota_of_version_2_is_read_in_cores(tmp_path: Path, limit: str, quota: float | None) -> None:
    files = {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": limit}
    assert cpu_allowance(tree(tmp_path, files)).quota == quota


@pytest.mark.parametrize(("limit", "quota"), [("50000\n", 0.5), ("-1\n", None)])
def test_a_quota_of_version_1_is_read_in_cores(tmp_path: Path, limit: str, quota: float | None) -> None:
    group = "sys/fs/cgroup/cpu/job"
    files = {f"{group}/cpu.cfs_quota_us": limit, f"{group}/cpu.cfs_period_us": "100000\n"}
    files["proc/self/cgroup"] = "4:memory:/other\n3:cpu,cpuacct:/job\n"
    assert cpu_allowance(tree(tmp_path, files)).quota == quota


def test_the_tightest_quota_on_the_way_to_the_root_holds(tmp_path: Path) -> None:
    files = {f"sys/fs/cgroup/{name}/cpu.max": f"{quota} 100000" for name, quota in [("a", 200000), ("a/b", 400000)]}
    assert cpu_allowance(tree(tmp_path, files | {"proc/self/cgroup": "0::/a/b\n"})).quota == 2.0


def test_a_container_that_sees_only_its_own_group_reads_that(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/outside/this\n", "sys/fs/cgroup/cpu.max": "100000 100000"}
    assert cpu_allowance(tree(tmp_path, files)).quota == 1.0


@pytest.mark.parametrize(
    ("group", "stat"),
    [
        ("0::/job", "usage_usec 9\nnr_throttled 3\nthrottled_usec 250000\n"),
        ("3:cpu:/job", "nr_periods 9\nnr_throttled 3\nthrottled_time 250000000\n"),
    ],
)
def test_throttling_is_counted_in_times_and_seconds_in_both_versions(tmp_path: Path, group: str, stat: str) -> None:
    place = "sys/fs/cgroup/job" if group.startswith("0") else "sys/fs/cgroup/cpu/job"
    allowance = cpu_allowance(tree(tmp_path, {"proc/self/cgroup": f"{group}\n", f"{place}/cpu.stat": stat}))
    assert (allowance.throttled, allowance.throttled_s) == (3, 0.25)


def test_without_control_groups_there_is_no_limit_and_no_counter(tmp_path: Path) -> None:
    allowance = cpu_allowance(tmp_path)
    assert (allowance.quota, allowance.throttled, allowance.throttled_s) == (None, None, None)


def test_free_memory_is_what_the_kernel_says_can_be_taken(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/meminfo": "MemTotal:  32 kB\nMemFree:  2 kB\nMemAvailable:       16 kB\n"})
    assert available_bytes(tmp_path) == 16 * 1024
    tree(tmp_path, {"proc/meminfo": "MemTotal:  32 kB\n"})
    assert available_bytes(tmp_path) is None and available_bytes(tmp_path / "none") is None
    assert (available_bytes() or 1) > 0


HELD = "anon 1\ninactive_file 200\nactive_file 100\n"
LIMITED = {"sys/fs/cgroup/job/memory.max": "5000\n", "sys/fs/cgroup/job/memory.current": "4000\n"}
OLDER = {
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "5000\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "4000\n",
    "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 7\ntotal_inactive_file 200\ntotal_active_file 100\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "9000\n",
}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"proc/self/cgroup": "0::/job\n", **LIMITED, "sys/fs/cgroup/job/memory.stat": HELD}, 1300),
        ({"proc/self/cgroup": "0::/job/mine\n", **LIMITED, "sys/fs/cgroup/job/mine/memory.max": "max\n"}, 1000),
        ({"proc/self/cgroup": "0::/job\n", **LIMITED, "sys/fs/cgroup/job/memory.current": "6000\n"}, 0),
        ({"proc/self/cgroup": "5:cpu:/other\n4:memory:/job\n", **OLDER}, 1300),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": "max\n"}, None),
        ({}, None),
    ],
)
def test_memory_is_free_as_far_as_the_tightest_group_lets_it_be(
    tmp_path: Path, files: dict[str, str], left: int | None
) -> None:
    assert memory_left(tree(tmp_path, files)) == left
    free = 16 * 1024
    tree(tmp_path, {"proc/meminfo": "MemAvailable: 16 kB\n"})
    assert available_bytes(tmp_path) == (free if left is None else min(free, left))


@pytest.mark.parametrize("threads", ["1", "2"])
def test_where_torch_is_not_loaded_another_process_says_how_many_threads_it_uses(threads: str) -> None:
    code = (
        "import sys; from spectune.profiler.cpu import torch_threads; found = torch_threads(); is_loaded = 'torch' in "
        "sys.modules; import torch; print(found, torch.get_num_threads(), torch_threads(), is_loaded)"
    )
    given = os.environ | {"OMP_NUM_THREADS": threads}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=given)
    assert done.stdout.split() == [threads, threads, threads, "False"]
