"""A request's id, and the time by which it must be answered."""

import asyncio
import random
import re
from collections.abc import Mapping

from starlette.types import Scope

from app.errors import InvalidRequest

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
TIMEOUT_MS = re.compile(rb"[1-9][0-9]*")
TIMEOUT_DIGITS = 18  # a longer number is above any deadline, and so are its first 18 digits


def new_request_id() -> str:
    """A random id, which need not be secret.

    The system's random bytes would cost a system call, for which Python gives up the GIL.
    """
    return f"{random.getrandbits(128):032x}"


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The client's own id if it is valid, otherwise a new one."""
    own = headers.get(b"x-request-id")
    return own.decode() if own and REQUEST_ID.fullmatch(own) else new_request_id()


def timeout_ms(asked: bytes, *, longest_ms: int) -> int:
    """The milliseconds that ``x-request-timeout-ms`` asks for, at most ``longest_ms``.

    Raises:
        InvalidRequest: it is no whole number, or 0.
    """
    if not TIMEOUT_MS.fullmatch(asked):
        raise InvalidRequest(
            "x-request-timeout-ms must be a whole number of milliseconds, 1 or more"
        )
    return min(int(asked[:TIMEOUT_DIGITS]), longest_ms)


def deadline(scope: Scope, headers: Mapping[bytes, bytes], *, longest_ms: int) -> float:
    """The time by which the request must be answered, on the event loop's clock.

    Raises:
        InvalidRequest: the client asks for something that is no time.
    """
    asked = headers.get(b"x-request-timeout-ms")
    allowed_ms = timeout_ms(asked, longest_ms=longest_ms) if asked else longest_ms
    # The time counts from the arrival of the headers, if the server knows it: under load they wait
    # a while before they are read.
    arrived: float = scope["state"].get("arrived") or asyncio.get_running_loop().time()
    return arrived + allowed_ms / 1000
