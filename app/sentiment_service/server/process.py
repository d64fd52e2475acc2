"""Prepares the process before it serves: standard files, limit of open files, freed memory."""

import ctypes
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from sentiment_service.errors import UserError

# Each connection takes a file descriptor. With more than this, memory would run out first.
MOST_FILES = 65_536
LEAST_FILES = 64
# The received parts of a long body are mostly longer; what a usual request takes is shorter.
RETURNED_BYTES = 65_536
M_MMAP_THRESHOLD = -3  # of glibc; Python has no name for it


def open_standard_files() -> None:
    """Open the null device in place of standard files that are closed (``2>&-``).

    Otherwise the next files and sockets would get their descriptors, and text for standard error
    could be sent to a client.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)


def raise_file_limit() -> None:
    """Let the process open as many files as the system allows it, 65,536 at most.

    Without this call the limit is usually 1,024, for the sake of programs that use select().

    Raises:
        UserError: it allows too few to serve at all.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if hard != unlimited and hard < LEAST_FILES:
        raise UserError(
            f"this process may have {hard} files and connections open (ulimit -n); it needs "
            f"{LEAST_FILES} at least"
        )
    wanted = MOST_FILES if hard == unlimited else min(hard, MOST_FILES)
    if soft == unlimited or soft >= wanted:
        return
    with suppress(OSError, ValueError):  # macOS allows less than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def return_long_blocks() -> None:
    """Make the C library return each block of 64 KiB or more to the system when it is freed.

    glibc raises its own threshold, to 32 MiB at most, when long blocks are freed. Then they come
    from a heap of which only the end is returned: after hundreds of long bodies at once, the
    process keeps up to 200 MB that nothing uses.
    """
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, RETURNED_BYTES)
