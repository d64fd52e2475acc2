"""The log: one line an event, JSON for machines or words for people, ours and uvicorn's alike.

What clients send is never logged, but for the ids of a request and its trace: paths and queries are
not, requests show by the template of their route.

A thread of its own writes the lines: whoever reads standard error may stop, and must not stop the
service with him.
"""

import logging
import os
import select
import sys
import threading
import time
from functools import lru_cache
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, Literal

from pydantic_core import to_json

Format = Literal["auto", "human", "json"]

STANDARD_ERROR = 2
# Lines that may wait to be written; of the access log they take 4 MB.
MAX_WAITING = 10_000
# For what waits when the process ends.
CLOSE_S = 1.0

logger = logging.getLogger(__name__)


def configure(level: str, log_format: Format) -> None:
    """Log to standard error until ``close``; ``auto`` is for people at a terminal."""
    human = log_format == "human" or (log_format == "auto" and sys.stderr.isatty())
    _lines.setFormatter(_Human() if human else _Json())
    logging.basicConfig(level=level.upper(), handlers=[_lines])
    logging.captureWarnings(True)  # Python would write them to standard error itself
    # Not to walk the stack for each line: none shows where it was logged.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    _writer.start()


def close() -> None:
    """Write what waits, within a second if it is read; what is logged later is lost."""
    # It waits for the last line, for as long as that takes.
    stopping = threading.Thread(target=_writer.stop, daemon=True)
    stopping.start()
    stopping.join(CLOSE_S)


def dropped_lines() -> int:
    """How many lines were not written, because standard error was not read or is gone."""
    return _writer.dropped


class _Lines(QueueHandler):
    """Formats a line where it is logged, as what it tells of may change, and waits for nobody."""

    # Unlike queue.Queue, a signal handler may put something while its thread puts something.
    queue: SimpleQueue[str]

    def __init__(self) -> None:
        super().__init__(SimpleQueue())
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> str:
        return self.format(record) + "\n"

    def enqueue(self, line: Any) -> None:
        if self.queue.qsize() < MAX_WAITING:
            self.queue.put_nowait(line)
        else:
            self.dropped += 1


class _Writer(QueueListener):
    """Writes the lines, each at once: other processes may write to the same file.

    It writes to the descriptor: a stream has a lock, which the interpreter would wait for at its
    end while this thread waits for a reader.
    """

    def __init__(self, lines: _Lines) -> None:
        super().__init__(lines.queue)
        self._lines = lines
        self._failed = 0
        self._told = 0

    @property
    def dropped(self) -> int:
        """Lines that found no room, and those that could not be written."""
        return self._lines.dropped + self._failed

    def handle(self, record: Any) -> None:
        if not _write(record.encode(errors="backslashreplace")):
            self._failed += 1
            return
        dropped = self.dropped
        # Not as soon as there is room for a line, or half of what a slow reader gets would be this.
        if dropped > self._told and self._lines.queue.qsize() <= MAX_WAITING // 2:
            logger.warning("%d log lines were dropped", dropped - self._told)
            self._told = dropped


def _write(line: bytes) -> bool:
    """Whether standard error took the line; this waits until it is read."""
    try:
        while line:
            try:
                line = line[os.write(STANDARD_ERROR, line) :]
            except BlockingIOError:  # another process that has the file chose not to wait
                select.select([], [STANDARD_ERROR], [])
    except OSError:
        return False
    return True


class _Json(logging.Formatter):
    """An object a line: time, level, logger, message, and the record's ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": f"{_utc(int(record.created))}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return to_json(document, fallback=str).decode()


class _Human(logging.Formatter):
    """Time, level, message, and the record's ``fields`` as words."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        fields = getattr(record, "fields", {})
        return " ".join([line, *(f"{name}={value}" for name, value in fields.items())])

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")


@lru_cache(maxsize=1)
def _utc(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


_lines = _Lines()
_writer = _Writer(_lines)
