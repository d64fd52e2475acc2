"""Parts as Parquet files. Their footers hold their records."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sentiment_service.files.cluster.object_store import StoreDirectory
from sentiment_service.files.run.directory import RunDirectory
from sentiment_service.files.run.parts import Part
from sentiment_service.files.run.report import Tally, counted
from sentiment_service.files.run.table_classifier import TableClassifier
from sentiment_service.files.tables.parquet import ParquetOutput

# The key of a part's record in the footer.
METADATA_KEY = b"sentiment"


def write_part(
    part: Part, classifier: TableClassifier, directory: RunDirectory, digest: str
) -> int:
    """Classify a part, write its file, and return its rows.

    Raises:
        UserError: the model failed, or an input cannot be read or has changed.
        OSError: a file cannot be read or written.
    """
    tally = Tally()
    output = ParquetOutput(part.pieces[0].table, classifier.columns)

    def record() -> dict[bytes, str]:
        return {METADATA_KEY: json.dumps({"plan": digest, **vars(tally)})}

    def write(path: Path) -> None:
        chunks = chain.from_iterable(piece.chunks() for piece in part.pieces)
        output.write(path, counted(classifier.classify(chunks), tally), record)

    directory.write(part.name, write)
    return tally.rows


def read_record(directory: RunDirectory, name: str) -> dict[str, Any] | None:
    """What was saved with a part; None if the part is damaged.

    Raises:
        OSError: the directory cannot be read.
    """
    try:
        if isinstance(directory, StoreDirectory):
            path = f"{directory.store_path}/{name}"
            footer = pq.read_metadata(path, filesystem=directory.filesystem)
        else:
            footer = pq.read_metadata(f"{directory.address}/{name}")
        record: dict[str, Any] = json.loads((footer.metadata or {})[METADATA_KEY])
        return record
    except (pa.ArrowException, ValueError, KeyError):
        return None
    except OSError as error:
        # pyarrow raises it for a footer that is not valid, and for what it cannot read.
        if "deserialize thrift" not in str(error):
            raise
        return None
