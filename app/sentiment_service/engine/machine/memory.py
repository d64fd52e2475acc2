"""How much memory this process may use, and how it returns freed memory to the system."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from sentiment_service.engine.machine.cgroups import groups

LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


def available_memory(root: Path = Path("/")) -> int:
    """The memory in bytes that this process may use: the machine's, or less under a cgroup limit.

    ``root`` is the directory that holds ``proc`` and ``sys``.
    """
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (
        _limit(directory / LIMIT_FILES[version]) for version, directory in groups("memory", root)
    )
    return min([installed, *(limit for limit in limits if limit is not None)])


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # there is no limit: no file, or the file says "max"
        return None


def give_back_memory() -> None:
    """Make the C library return freed memory to the system.

    glibc keeps memory that was freed by threads which have ended since. After a reload this is as
    much as a whole model.
    """
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
