"""The processes below a process."""

from pathlib import Path


def descendants(process: int) -> list[int]:
    """Its children, their children and so on, the earliest first; none if it has ended."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [one for child in map(int, children) for one in (child, *descendants(child))]
