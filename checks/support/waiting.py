"""Waiting for what other processes do."""

import time
from collections.abc import Callable


def wait(
    condition: Callable[[], bool],
    seconds: float,
    what: str,
    *,
    not_yet: tuple[type[Exception], ...] = (),
    interval: float = 0.1,
) -> None:
    """Wait until the condition holds. Errors of the types ``not_yet`` mean that it does not."""
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except not_yet:
            pass
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(interval)
