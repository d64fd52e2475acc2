"""The interface of a classifier of tables: a model in this process, or a remote service."""

from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol

from sentiment_service.errors import InvalidRequest
from sentiment_service.files.result_columns import ResultColumns, ResultItem
from sentiment_service.files.tables.outputs import ClassifiedChunk
from sentiment_service.files.tables.table import Chunk
from sentiment_service.files.tables.unicode import NOT_UTF8

# While one chunk of a table is written, the next two are computed.
READ_AHEAD_CHUNKS = 2

Advance = Callable[[int], object]


class TableClassifier(Protocol):
    """Classifies tables.

    ``columns`` are those that its results have in a file. A run can be continued only by a
    classifier with the same ``identity``: model, precision and so on, as JSON values.
    """

    columns: ResultColumns
    identity: dict[str, Any]

    def classify(
        self,
        chunks: Iterable[Chunk],
        *,
        read_ahead: int = READ_AHEAD_CHUNKS,
        advance: Advance = lambda _: None,
    ) -> Generator[ClassifiedChunk, None, None]:
        """Classify the chunks in order.

        Up to ``read_ahead`` more chunks are read before a chunk's results are given, so that
        there is always something to compute. ``advance(n)`` is called when n more texts are done.

        Raises:
            UserError: the model or the service failed.
        """


def with_reason(text: object, result: ResultItem) -> ResultItem:
    """The result, with what users can understand if the text has bytes that are not UTF-8.

    A model sees only the lone surrogates that such bytes have become.
    """
    if "error" in result and isinstance(text, str) and NOT_UTF8.search(text):
        message = "the text is not UTF-8; convert the input, for example with iconv"
        return {"error": {"code": InvalidRequest.code, "message": message}}
    return result
