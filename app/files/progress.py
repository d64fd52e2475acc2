"""What a person at the terminal sees: how far it is, and at the end what came out."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Self

from app.files.job import Tally
from app.files.tables import Chunk


class Progress:
    """A bar on standard error: texts a second and the time that remains.

    How many texts there are is what the part of the file that was read lets expect.
    """

    def __init__(self, *, shown: bool, done: int) -> None:
        self._read = done
        self._bar: Any = None
        if not shown:
            return
        try:
            from tqdm import tqdm
        except ImportError:  # of the extra `files`; one can do without
            return
        self._bar = tqdm(initial=done, unit=" texts", leave=False, file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def reading(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The same chunks; how many texts there are is learnt from them."""
        for chunk in chunks:
            self._read += len(chunk.texts)
            if self._bar is not None and chunk.fraction:
                self._bar.total = round(self._read / chunk.fraction)
            yield chunk

    def advance(self, texts: int) -> None:
        """So many more are done."""
        if self._bar is not None:
            self._bar.update(texts)


def summary(tally: Tally, rows: int, seconds: float) -> str:
    """Lines that say what came out; ``rows`` of it in these ``seconds``, the rest earlier."""
    earlier = f", {tally.rows - rows:,} of them earlier" if tally.rows > rows else ""
    speed = f" ({rows / seconds:,.0f} rows/s{earlier})" if seconds else ""
    lines = [f"{tally.rows:,} rows in {seconds:.1f} s{speed}"]
    width = max(map(len, tally.labels), default=0)
    sound = tally.rows - tally.errors
    for label, count in sorted(tally.labels.items()):
        lines.append(f"{label:{width}}  {count:>11,}  {count / sound:6.1%}")
    return "\n".join([*lines, f"errors {tally.errors:,}, truncated {tally.truncated:,}"])
