"""Pauses Python's garbage collector while a body is parsed."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Turn the collector off inside the context, and on again after it if it was on before.

    A body may hold a million lists. The collector would look at all of them again and again, which
    takes a second in which no other request is answered. Pauses may overlap: the collector is on
    again after the last one.
    """
    global _pauses, _was_enabled
    with _lock:
        if not _pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _was_enabled:
                gc.enable()
