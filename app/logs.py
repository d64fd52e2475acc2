"""The log: one line an event, JSON for machines or words for people, ours and uvicorn's alike.

What clients send is never logged, but for the ids of a request and its trace: paths and queries are
not, requests show by the template of their route.
"""

import logging
import sys
import time
from functools import lru_cache
from typing import Any, Literal

from pydantic_core import to_json

Format = Literal["auto", "human", "json"]


def configure(level: str, log_format: Format) -> None:
    """Log to standard error; ``auto`` is for people where they sit before a terminal."""
    human = log_format == "human" or (log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(_Human() if human else _Json())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # Not to walk the stack for each line: none shows where it was logged.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


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
