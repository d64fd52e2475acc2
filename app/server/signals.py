"""What SIGTERM, SIGINT (Ctrl-C) and SIGHUP do, from the start of the process to its end."""

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # its import takes a tenth of a second, in which SIGHUP would end the process
    from app.engine.lifecycle import Lifecycle


def while_starting() -> None:
    """Until models are loaded: SIGTERM ends the process, and SIGHUP does nothing.

    By default, process 1 of a container ignores SIGTERM, and SIGHUP ends a process.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def note_hangups(hangups: list[int]) -> None:
    """From now on SIGHUP is noted there; the server then loads all models again."""
    signal.signal(signal.SIGHUP, lambda number, _: hangups.append(number))


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
