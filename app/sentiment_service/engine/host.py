"""The CPUs and the memory that this process may use: affinity, and what its cgroups grant.

``root`` is everywhere the directory that holds ``proc`` and ``sys``.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

# How much nicer a thread that computes is than the event loop, which needs little time, but at
# once: it answers probes, and feeds the runners. With as many runners as CPUs, it would wait for a
# CPU for half of the time.
NICE = 5


def be_nice() -> None:
    """Let the event loop's thread have the CPU before this one."""
    if sys.platform == "linux":  # elsewhere, the whole process would be nicer
        with suppress(OSError):  # a sandbox may forbid it
            os.nice(NICE)


def groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """The version (1 or 2) and directory of each group that limits this process.

    Parents are included, because their limits apply to their children.
    """
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers == "":
            version, mount = 2, root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            version, mount = 1, root / "sys/fs/cgroup" / controller
        else:
            continue
        # Inside a container the path may be that of the host and not exist here. The loop then
        # still reaches the mount point, which is the container's own group.
        group = mount / path.lstrip("/")
        for directory in (group, *group.parents):
            if directory.is_relative_to(mount):
                yield version, directory


# More threads per batch make the inference of texts no faster.
MAX_THREADS = 8
# CPU flags in Linux's spelling: first those of x86, then those of Arm.
VECTOR_FLAGS = (
    *("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimddp", "i8mm", "bf16", "sve", "sve2"),
)


def available_cpus(root: Path = Path("/")) -> float:
    """The number of CPUs that this process may use. A cgroup quota can make it a fraction."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min([float(affinity or 1), *_cgroup_quotas(root)])


def ways_to_share(cpus: float, *, runners: int, threads: int) -> list[tuple[int, int]]:
    """Pairs (runners, threads per runner) whose product fits ``cpus``.

    The pair with one thread per runner is last. If ``runners`` or ``threads`` is not 0, it is used
    as given, even if it does not fit.
    """
    if runners:
        return [(runners, threads or max(1, int(cpus / runners)))]
    if threads:
        return [(max(1, int(cpus / threads)), threads)]
    powers = [2**power for power in range(MAX_THREADS.bit_length()) if 2**power <= max(1.0, cpus)]
    return [(int(cpus / number) or 1, number) for number in reversed(powers)]


def cpu_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """The instruction sets of the CPU, as the system spells them; empty if it lists none."""
    return frozenset((_cpuinfo("flags", root) or _cpuinfo("Features", root)).split())  # x86, Arm


def vector_flags() -> str:
    """The CPU flags that decide how fast a model is, as one string; ``unknown`` if none."""
    flags = cpu_flags()
    return " ".join(flag for flag in VECTOR_FLAGS if flag in flags) or "unknown"


@cache
def _cpuinfo(name: str, root: Path = Path("/")) -> str:
    """The first value of ``name`` in Linux's ``/proc/cpuinfo``; empty if there is none."""
    with suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


QUOTA_FILES = {1: ("cpu.cfs_quota_us", "cpu.cfs_period_us"), 2: ("cpu.max",)}


def _cgroup_quotas(root: Path) -> Iterator[float]:
    """The number of CPUs that each cgroup of this process allows, where it sets a limit."""
    for version, directory in groups("cpu", root):
        with suppress(OSError, ValueError):  # there is no limit: no file, or it says "max" or -1
            texts = [(directory / name).read_text() for name in QUOTA_FILES[version]]
            quota, period = map(int, " ".join(texts).split())
            if quota > 0:
                yield quota / period


# A group's limit, what it uses, and the part of that which the system takes back when needed.
MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def available_memory(root: Path = Path("/")) -> int:
    """The memory in bytes that this process may use: the machine's, or less in a cgroup."""
    return _least_memory(root)[0]


def used_memory(root: Path = Path("/")) -> int:
    """What is used of that memory, by this process and others, as Kubernetes measures it."""
    _, version, directory = _least_memory(root)
    with suppress(OSError, ValueError):
        if directory is None:
            info = _numbers(root / "proc/meminfo")
            return 1024 * (info["MemTotal:"] - info["MemAvailable:"])
        _, current, cached = MEMORY_FILES[version]
        used = int((directory / current).read_text())
        return used - _numbers(directory / "memory.stat").get(cached, 0)
    return 0


def _least_memory(root: Path) -> tuple[int, int, Path | None]:
    """The limit, and the version and the directory of the group that sets it."""
    least: tuple[int, int, Path | None]
    least = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 0, None
    for version, directory in groups("memory", root):
        with suppress(OSError, ValueError):  # there is no limit: no file, or it says "max"
            limit = int((directory / MEMORY_FILES[version][0]).read_text())
            if limit < least[0]:
                least = limit, version, directory
    return least


def _numbers(path: Path) -> dict[str, int]:
    """The numbers of a file that has a name and a number in each line."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines}


def give_back_memory() -> None:
    """Make the C library return memory to the system that was freed by threads which have ended.

    After a reload this is as much as a whole model.
    """
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
