"""How much memory this process may use: the machine's and its container's limit."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from app.engine.machine.cgroups import groups

LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


def available_memory(root: Path = Path("/")) -> int:
    """Bytes; ``root`` is the directory that holds ``proc`` and ``sys``."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (
        _limit(directory / LIMIT_FILES[version]) for version, directory in groups("memory", root)
    )
    return min([installed, *(limit for limit in limits if limit is not None)])


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # there is none, or it says "max"
        return None


def give_back_memory() -> None:
    """Have the C library return freed memory to the system.

    glibc keeps what threads that have ended had freed: after a reload, as much as a model.
    """
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
