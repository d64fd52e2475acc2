"""The CPU quota, read from directory trees in Linux's form."""

import os
from pathlib import Path

import pytest
from sentiment_service.engine.host import available_cpus, cpu_flags, ways_to_share


@pytest.fixture(autouse=True)
def _eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        pytest.param({}, 8.0, id="no cgroups: affinity"),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"},
            1.5,
            id="a container that sees its own cgroup as the root",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/kubepods/pod1/box\n",
                "sys/fs/cgroup/kubepods/pod1/box/cpu.max": "max 100000\n",
                "sys/fs/cgroup/kubepods/pod1/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/kubepods/cpu.max": "600000 100000\n",
            },
            2.0,
            id="the tightest quota on the way to the root",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/not/mounted/here\n",
                "sys/fs/cgroup/cpu.max": "50000 100000\n",
            },
            0.5,
            id="the host's path, which the container does not see",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:cpuset:/\n4:cpu,cpuacct:/box\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3.0,
            id="version 1",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "9900000 100000\n"},
            8.0,
            id="a quota beyond the affinity",
        ),
    ],
)
def test_the_tightest_limit_counts(tmp_path: Path, files: dict[str, str], cpus: float) -> None:
    """Affinity and every cgroup above the process limit the CPUs; what is absent does not."""
    assert available_cpus(_write(tmp_path, files)) == cpus


@pytest.mark.parametrize(
    ("cpus", "runners", "threads", "expected"),
    [
        (4.0, 0, 0, [(1, 4), (2, 2), (4, 1)]),
        (6.0, 0, 0, [(1, 4), (3, 2), (6, 1)]),
        (64.0, 0, 0, [(8, 8), (16, 4), (32, 2), (64, 1)]),
        (1.5, 0, 0, [(1, 1)]),
        (0.5, 0, 0, [(1, 1)]),
        (4.0, 0, 2, [(2, 2)]),
        (4.0, 1, 0, [(1, 4)]),
        (2.0, 3, 0, [(3, 1)]),
        (2.0, 3, 5, [(3, 5)]),
    ],
)
def test_runners_times_threads_fit_the_cpus(
    cpus: float, runners: int, threads: int, expected: list[tuple[int, int]]
) -> None:
    """Unset values are filled in, each at least one; set values are kept."""
    assert ways_to_share(cpus, runners=runners, threads=threads) == expected


@pytest.mark.parametrize(
    ("listed", "flags"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512_vnni\n", {"fpu", "avx2", "avx512_vnni"}),
        ("processor\t: 0\nFeatures\t: fp asimd asimddp\n", {"fp", "asimd", "asimddp"}),
        ("processor\t: 0\nflags\t: avx2\n\nprocessor\t: 1\nflags\t: sse\n", {"avx2"}),
        ("processor\t: 0\n", set()),
    ],
    ids=["x86", "Arm", "the first processor's", "none"],
)
def test_the_flags_are_those_that_linux_lists(tmp_path: Path, listed: str, flags: set[str]) -> None:
    """CPU flags are read under the name that each architecture uses for them."""
    assert cpu_flags(_write(tmp_path, {"proc/cpuinfo": listed})) == flags


def test_where_linux_lists_nothing_there_are_no_flags(tmp_path: Path) -> None:
    """Without /proc/cpuinfo, as on macOS and Windows, there are no flags."""
    assert cpu_flags(tmp_path) == frozenset()
