"""What a run shows on standard error: a progress bar on a terminal, and warnings."""

import logging
import sys
from typing import Any, Self


class Progress:
    """A bar on standard error with the texts per second and, of ``total``, the time that remains.

    ``done`` of them were done before.
    """

    def __init__(self, *, shown: bool, total: int | None, done: int = 0) -> None:
        self._bar: Any = None
        if not shown:
            return
        try:
            from tqdm import tqdm
        except ImportError:  # it comes with the extra `files`; the command works without a bar
            return
        self._bar = tqdm(total=total, initial=done, unit=" texts", leave=False, file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, texts: int) -> None:
        """Count ``texts`` more as done."""
        if self._bar is not None:
            self._bar.update(texts)


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
