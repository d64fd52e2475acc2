"""What a run shows on standard error: a progress bar on a terminal, and warnings."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


@contextmanager
def progress_bar(
    *, shown: bool, total: int | None, done: int = 0
) -> Iterator[Callable[[int], object]]:
    """A bar on standard error with the texts per second and, of ``total``, the time that remains.

    ``done`` of them were done before. Yields a function that counts more texts as done.
    """
    if not (shown and find_spec("tqdm")):  # the extra `files` has it
        yield lambda _: None
        return
    from tqdm import tqdm

    with tqdm(total=total, initial=done, unit=" texts", leave=False, file=sys.stderr) as bar:
        yield bar.update


class Warnings(logging.Handler):
    """Writes each warning of the log as one line, above the progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the message without the traceback of an exception."""
        line = f"sentiment: {record.getMessage()}"
        try:
            from tqdm import tqdm
        except ImportError:  # then there is no bar
            print(line, file=sys.stderr)
        else:
            tqdm.write(line, file=sys.stderr)
