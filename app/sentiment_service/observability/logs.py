"""The log: one line per event, as JSON or as text for people, and a line for each request.

Nothing that a client sends is logged, except the ids of its request and trace. A thread writes the
lines: if the reader of standard error stops reading, the thread waits and the service goes on.
"""

import logging
import os
import re
import select
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, Literal

from opentelemetry.trace import Span
from pydantic_core import to_json

Format = Literal["auto", "human", "json"]

STANDARD_ERROR = 2
# Lines that may wait to be written. This many lines of the access log take 4 MB.
MAX_WAITING = 10_000
# Seconds to write the waiting lines when the process ends.
CLOSE_S = 1.0
# W3C Trace Context, version 00: the trace id, the id of the caller's span, and flags, of which the
# last bit says that the trace is kept.
TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]([0-9a-f])")

logger = logging.getLogger(__name__)
access = logging.getLogger("access")


def configure(level: str, log_format: Format, *, worker: int | None = None) -> None:
    """Log to standard error until ``close``; ``auto`` means text at a terminal, else JSON.

    Each line names the ``worker`` of this number, if the process is one of several.
    """
    global _worker
    _worker = worker
    _lines.setFormatter(_Human() if _for_people(log_format) else _Json())
    logging.basicConfig(level=level.upper(), handlers=[_lines])
    for client in ("httpx", "httpx2"):  # what the hub is asked with, which logs each request
        logging.getLogger(client).setLevel(logging.WARNING)
    # It warns of a wrong header tracestate in the client's words.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
    logging.captureWarnings(True)  # by default, they bypass the log
    # Without this, logging walks the stack for each line to find the caller, which no line shows.
    logging._srcfile = None  # noqa: SLF001 - as the logging documentation says
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    _writer.start()


def close() -> None:
    """Write the waiting lines, for at most a second; later lines are lost."""
    _writer.end()


def report_failure(message: str, log_format: str) -> None:
    """Write why the service did not start or has failed, before ``configure`` or after ``close``.

    The format may be a wrong one: settings are among the things that fail.
    """
    if _for_people(log_format):
        worker = "" if _worker is None else f"worker {_worker}: "
        print(f"sentiment: {worker}{message}", file=sys.stderr)
        return
    record = logging.LogRecord(
        "sentiment_service.cli.command", logging.CRITICAL, "", 0, message, None, None
    )
    print(_Json().format(record), file=sys.stderr)


def logs_requests(setting: str) -> bool:
    """Whether requests have a line each, by the setting and by the level of the log."""
    return setting == "on" and access.isEnabledFor(logging.INFO)


def log_request(fields: dict[str, Any], *, quiet: bool = False) -> None:
    access.log(logging.DEBUG if quiet else logging.INFO, "request", extra={"fields": fields})


def trace_id(span: Span | None, headers: Mapping[bytes, bytes]) -> tuple[str | None, bool]:
    """The id of the request's trace, ours or its caller's, as 32 hexadecimal digits, or None; and
    whether the trace is kept, and not only named.
    """
    if span is not None and span.is_recording():
        return f"{span.get_span_context().trace_id:032x}", True
    caller = TRACEPARENT.fullmatch(headers.get(b"traceparent", b"").decode("latin-1"))
    return (caller[1], bool(int(caller[2], 16) & 1)) if caller else (None, False)


def dropped_lines() -> int:
    return _writer.dropped


def _for_people(log_format: str) -> bool:
    return log_format == "human" or (log_format != "json" and sys.stderr.isatty())


class _Lines(QueueHandler):
    """Puts each line into the queue without waiting, formatted: its objects may change later."""

    # SimpleQueue is reentrant: a signal handler may log while its thread is logging.
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
    """Writes each line in one call, because other processes may write to the same file.

    Not to ``sys.stderr``: at exit, the interpreter would wait for its lock, and this thread for a
    reader.
    """

    def __init__(self, lines: _Lines) -> None:
        super().__init__(lines.queue)
        self._lines = lines
        self._failed = 0
        self._told = 0

    @property
    def dropped(self) -> int:
        return self._lines.dropped + self._failed

    def end(self) -> None:
        """Like ``stop``, which waits for the last line without a time limit."""
        self.enqueue_sentinel()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            self._thread = None

    def handle(self, record: Any) -> None:
        if _write(record.encode(errors="backslashreplace")):
            self._failed += 1
            return
        dropped = self.dropped
        # Wait until the queue is half empty: otherwise a slow reader would get this warning after
        # every other line.
        if dropped > self._told and self._lines.queue.qsize() <= MAX_WAITING // 2:
            logger.warning("%d log lines were dropped", dropped - self._told)
            self._told = dropped


def _write(line: bytes, to: int = STANDARD_ERROR) -> bytes:
    """Write the line and wait until it is taken; what is left if standard error takes no more."""
    try:
        while line:
            try:
                line = line[os.write(to, line) :]
            except BlockingIOError:  # another process made the file non-blocking
                select.select([], [to], [])
    except OSError:  # it is closed, or the disk is full
        pass
    return line


class _Json(logging.Formatter):
    """A JSON object per line: time, level, logger, message and the record's ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": f"{_utc(int(record.created))}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            **({} if _worker is None else {"worker": _worker}),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return to_json(document, fallback=str).decode()


class _Human(logging.Formatter):
    """Time, level and message, then the record's ``fields`` as ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        fields = getattr(record, "fields", {})
        return " ".join([line, *(f"{name}={value}" for name, value in fields.items())])

    def __init__(self) -> None:
        worker = "" if _worker is None else f"worker {_worker}: "
        super().__init__(f"%(asctime)s %(levelname)s {worker}%(message)s")


@lru_cache(maxsize=1)
def _utc(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


_worker: int | None = None
_lines = _Lines()
_writer = _Writer(_lines)
