"""What every classifier offers, be it a model in this process or a remote service."""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Protocol

from app.files.tables import Chunk

# The result of one text, as in the HTTP answer's ``results``: a prediction with ``label``,
# ``score``, ``scores`` and more, or only ``error`` with ``code`` and ``message``.
ResultItem = Mapping[str, Any]
# A chunk and the result of each of its texts, in order.
ClassifiedChunk = tuple[Chunk, list[ResultItem]]


class Classifier(Protocol):
    """Classifies tables.

    ``labels`` are in the order of the model's scores. A run can be continued only by a
    classifier with the same ``identity``: model, precision and so on, as JSON values.
    """

    labels: list[str]
    identity: dict[str, Any]

    def classify(
        self, chunks: Iterable[Chunk], *, read_ahead: int, advance: Callable[[int], None]
    ) -> Generator[ClassifiedChunk, None, None]:
        """Classify the chunks in order.

        Up to ``read_ahead`` more chunks are read before a chunk's results are given, so that
        there is always something to compute. ``advance(n)`` is called when n more texts are done.

        Raises:
            UserError: the model or the service failed.
        """
