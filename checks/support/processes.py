"""The processes below a process."""

from contextlib import suppress
from pathlib import Path


def descendants(process: int) -> list[int]:
    """Its children, their children and so on, the earliest first; none if it has ended."""
    children: list[int] = []
    for listed in sorted(Path(f"/proc/{process}/task").glob("*/children")):  # by thread
        with suppress(OSError):
            children += map(int, listed.read_text().split())
    return [one for child in children for one in (child, *descendants(child))]
