"""Compares two recordings."""

import re
from collections.abc import Iterator

from tests.replay.recording import FRACTION, RecordedAnswer, RecordedExchange, Recording, shortened

LENGTH = re.compile("content-length:", re.IGNORECASE)
SHOWN = 300  # characters of a difference
CONTEXT = 60  # characters before it


def differences(before: Recording, after: Recording, *, tolerance: float = 0.0) -> Iterator[str]:
    """A description of each request whose answers are not the same.

    If ``tolerance`` is above 0, fractions in a body may differ by that much, and the body's length
    with them. Whole numbers, such as counts of tokens, may not.
    """
    for name in {**before, **after}:
        if name not in before or name not in after:
            yield f"{name}\n  is only in {'the first' if name in before else 'the second'}"
            continue
        found = list(_of_record(before[name], after[name], tolerance))
        if found:
            yield "\n".join([name, *(f"  {line}" for line in found)])


def _of_record(
    before: RecordedExchange, after: RecordedExchange, tolerance: float
) -> Iterator[str]:
    if before["connection"] != after["connection"]:
        yield from _change("connection", before["connection"], after["connection"])
    if len(before["answers"]) != len(after["answers"]):
        yield from _change(
            "answers",
            " | ".join(answer["status"] for answer in before["answers"]),
            " | ".join(answer["status"] for answer in after["answers"]),
        )
        return
    for one, other in zip(before["answers"], after["answers"], strict=True):
        if "long_body" in one or "long_body" in other:
            one, other = shortened(one), shortened(other)
        yield from _of_answer(one, other, tolerance)


def _of_answer(one: RecordedAnswer, other: RecordedAnswer, tolerance: float) -> Iterator[str]:
    if one["status"] != other["status"]:
        yield from _change("status", one["status"], other["status"])
    body, other_body = _body(one), _body(other)
    is_close = tolerance > 0 and body != other_body and _is_close(one, other, tolerance)
    if body != other_body and not is_close:
        yield from _change("body", body, other_body)
    # The order of headers with different names has no meaning (RFC 9110, section 5.3).
    headers, other_headers = (
        sorted(
            (line for line in answer["headers"] if not (is_close and LENGTH.match(line))),
            key=lambda line: line.partition(":")[0],
        )
        for answer in (one, other)
    )
    if headers != other_headers:
        yield from _change("headers", "; ".join(headers), "; ".join(other_headers))


def _body(answer: RecordedAnswer) -> str:
    if "long_body" in answer:
        return f"{answer['long_body']['bytes']} bytes, sha256 {answer['long_body']['sha256']}"
    return answer["body"]


def _is_close(one: RecordedAnswer, other: RecordedAnswer, tolerance: float) -> bool:
    """Whether the bodies are the same but for small differences of their fractions."""
    if "long_body" in one and "long_body" in other:
        digest, other_digest = one["long_body"], other["long_body"]
        is_near = abs(digest["mean"] - other_digest["mean"]) <= tolerance
        return is_near and digest["frame"] == other_digest["frame"]
    body, other_body = _body(one), _body(other)
    if FRACTION.sub("", body) != FRACTION.sub("", other_body):
        return False
    fractions = zip(FRACTION.findall(body), FRACTION.findall(other_body), strict=True)
    return all(abs(float(first) - float(second)) <= tolerance for first, second in fractions)


def _change(what: str, before: str, after: str) -> Iterator[str]:
    same = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    start = max(0, same - CONTEXT)
    yield f"{what}, from character {start}:" if start else f"{what}:"
    yield f"  - {before[start : start + SHOWN]!r}"
    yield f"  + {after[start : start + SHOWN]!r}"
