"""Cuts a sequence into batches; ``itertools.batched`` needs Python 3.12."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Consecutive batches of ``size`` items; the last one may be smaller."""
    return (items[start : start + size] for start in range(0, len(items), size))
