"""Python's garbage collector, paused while a body is parsed."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the collector off meanwhile; afterwards it is on again only if it was on before.

    A body may hold a million lists, and the collector would look at all of them, again and again:
    a second, in which nobody else is answered. Pauses may overlap: the last one ends it.
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
