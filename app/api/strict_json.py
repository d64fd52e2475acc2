"""JSON that the fast parser refuses, and documents of too many values."""

import json
import math
from typing import Any

import numpy as np

from app.engine.worker import Steps
from app.errors import InvalidRequest

COUNTED_BYTES = 262_144  # in one step, which takes some 3 ms

_BEFORE_A_VALUE = np.zeros(256, dtype=np.bool_)
_BEFORE_A_VALUE[list(b"[{,:")] = True


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(digits)
    return value


# Like json.loads, but it refuses NaN and Infinity, which are not JSON, and numbers such as 1e999,
# which would become Infinity.
DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def parse_slowly(content: bytes, what: str) -> Any:
    """The value of a document that msgspec refuses. ``what`` names it in errors.

    A surrogate pair may be halved in one of the texts. Then only this text should fail.

    Raises:
        InvalidRequest: it is not JSON; the message says what is wrong.
    """
    try:
        return DECODER.decode(content.decode(json.detect_encoding(content), "surrogatepass"))
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at")
        raise InvalidRequest(
            f"{what} is not valid JSON: {fault} at character {error.pos}"
        ) from None
    except (ValueError, RecursionError):  # invalid UTF-8 raises a ValueError, too
        raise InvalidRequest(
            f"{what} is not JSON in UTF-8, or too deeply nested, or has a huge number or NaN"
        ) from None


def check_values(content: bytes, what: str, most: int) -> Steps[None]:
    """Count the values, names and brackets. Brackets, commas and colons inside strings are none.

    Raises:
        InvalidRequest: there are more than ``most``.
    """
    encoding = json.detect_encoding(content)
    if encoding.startswith(("utf-16", "utf-32")):
        content = content.decode(encoding, "replace").encode()
    count = 0
    in_string = False
    backslash = b""  # the first half of an escape that goes on in the next step
    for start in range(0, len(content), COUNTED_BYTES):
        part = backslash + content[start : start + COUNTED_BYTES]
        unescaped = part.replace(rb"\\", b"").replace(rb"\"", b"")
        backslash = b"\\" if unescaped.endswith(b"\\") else b""
        signs = np.frombuffer(unescaped.removesuffix(b"\\"), dtype=np.uint8)
        quoted = np.logical_xor.accumulate(signs == ord('"')) ^ in_string
        count += int(np.count_nonzero(_BEFORE_A_VALUE[signs] & ~quoted))
        if count > most:
            raise InvalidRequest(f"{what} has more than {most} values, names and brackets")
        in_string = bool(quoted[-1]) if len(quoted) else in_string
        yield
