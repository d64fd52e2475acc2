"""What SIGTERM, SIGINT (Ctrl-C) and SIGHUP do, from the start of the process to its end."""

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # their import takes a tenth of a second, in which SIGHUP would end the process
    import asyncio

    from sentiment_service.engine.lifecycle import Lifecycle


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
