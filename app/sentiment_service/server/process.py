"""The process that serves: its standard files, limits and memory, and what signals do to it from
its start to its end: SIGTERM, SIGINT (Ctrl-C) and SIGHUP.
"""

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sentiment_service.errors import UserError

if TYPE_CHECKING:  # their import takes a tenth of a second, in which SIGHUP would end the process
    import asyncio

    from sentiment_service.engine.health import Lifecycle

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


def while_starting() -> None:
    """Until models are loaded: SIGTERM ends the process, and SIGHUP does nothing.

    By default, process 1 of a container ignores SIGTERM, and SIGHUP ends a process.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def note_hangups(hangup: "asyncio.Event") -> None:
    """From now on SIGHUP sets ``hangup``; the server then loads all models again."""
    from asyncio import get_running_loop

    def note(*_: object) -> None:
        try:
            # Not at once: the signal may interrupt a task that is about to wait for the event.
            get_running_loop().call_soon_threadsafe(hangup.set)
        except RuntimeError:  # before and after the loop
            hangup.set()

    signal.signal(signal.SIGHUP, note)


def outside_the_event_loop(lifecycle: "Lifecycle") -> None:
    """Before uvicorn's loop SIGTERM ends the process; after the loop it changes nothing."""
    signal.signal(signal.SIGTERM, lambda number, _: lifecycle.stopping or sys.exit(128 + number))


def stop(lifecycle: "Lifecycle", number: int) -> None:
    """SIGTERM or SIGINT while the service runs: stop. A second Ctrl-C ends the process at once."""
    if lifecycle.stopping and number == signal.SIGINT:
        # A runner inside a native call cannot be interrupted, so do not wait for it.
        os._exit(128 + number)
    lifecycle.stop()


def while_ending() -> None:
    """The exit code is decided: SIGTERM and SIGHUP change nothing any more.

    The end of Python's interpreter gives signals with a handler their default, which would kill.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
