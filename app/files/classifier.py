"""What classifies a table's texts: a model here, or a service elsewhere."""

from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol

from app.files.outputs import Outcome
from app.files.tables import Chunk

Answered = tuple[Chunk, list[Outcome]]


class Classifier(Protocol):
    """``identity`` is what two of the same answers have in common."""

    labels: list[str]
    identity: dict[str, Any]

    def answers(
        self, chunks: Iterable[Chunk], *, ahead: int, advance: Callable[[int], None]
    ) -> Generator[Answered, None, None]:
        """The outcomes of each chunk's texts.

        Up to ``ahead`` more chunks are read before it is answered, so that there is always
        something to compute; ``advance`` hears of texts as they are done.

        Raises:
            UserError: it cannot go on.
        """
