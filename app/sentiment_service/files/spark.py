"""Classify a DataFrame of Spark. Needs the extra ``spark`` here and on the nodes."""

import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyspark import SparkFiles, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import NullType, StringType, StructType

from sentiment_service.engine.model.bundle import (
    EMBEDDED_BUNDLE,
    MANIFEST,
    Bundle,
    bundles_to_use,
    sha256,
)
from sentiment_service.errors import UserError
from sentiment_service.files.local import LocalClassifier
from sentiment_service.files.parquet import result_arrays, result_schema, texts
from sentiment_service.files.results import ResultColumns, column_index
from sentiment_service.files.table import CHUNK_ROWS, Chunk
from sentiment_service.settings.settings import Settings

# The directory inside of the archive that Spark copies to the nodes.
BUNDLE = "bundle"


@dataclass(frozen=True)
class PartitionClassifier:
    """What Spark sends to its Python workers.

    ``bundle`` is the shipped bundle's name among Spark's files; None for the embedded bundle,
    which the nodes have with this package. ``digest`` is that of its manifest.
    """

    bundle: str | None
    digest: str
    text_index: int
    columns: ResultColumns
    results: pa.Schema
    settings: Settings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Classify a partition, in the Python worker that has it."""
        task: TaskContext = TaskContext.get()  # never None in a task
        classifier = _classifier(self.bundle, self.digest, self.settings, task.cpus())
        for chunk, results in classifier.classify(self._chunks(batches)):
            rows, arrays = chunk.rows, result_arrays(self.columns, results, self.results)
            schema = pa.schema([*rows.schema, *self.results], metadata=rows.schema.metadata)
            yield pa.RecordBatch.from_arrays([*rows.columns, *arrays], schema=schema)

    def _chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
        for batch in batches:
            for start in range(0, batch.num_rows, CHUNK_ROWS):
                rows = batch.slice(start, CHUNK_ROWS)
                yield Chunk(rows, texts(rows.column(self.text_index)))


def classify_frame(
    frame: DataFrame, column: str = "text", *, settings: Settings | None = None
) -> DataFrame:
    """The DataFrame with the columns that ``sentiment classify`` adds to a file.

    A row that cannot be classified has an error; no row is lost. Nothing is computed before Spark
    needs the rows. ``settings`` are the driver's unless given: ``model`` is a bundle on the driver,
    which Spark copies to the nodes. Each task computes with as many runners as it has CPUs
    (``spark.task.cpus``).

    Raises:
        UserError: the bundle cannot be used, or the DataFrame has no such column of texts.
    """
    settings = settings or Settings()
    path = bundles_to_use(settings.model)[0]
    bundle = Bundle.open(path)
    columns = ResultColumns(bundle.manifest.labels, multi_label=bundle.multi_label)
    digest = sha256(path / MANIFEST)
    results = result_schema(columns, frame.columns)
    classify_partition = PartitionClassifier(
        bundle=_shipped(frame, path, digest) if settings.model else None,
        digest=digest,
        text_index=_text_index(column, frame.schema),
        columns=columns,
        results=results,
        settings=settings,
    )
    schema = StructType([*frame.schema, *from_arrow_schema(results)])
    # Spark names the columns again, by which it finds none with a dot, a backtick or a twin.
    numbered = frame.toDF(*(f"column{index}" for index in range(len(frame.columns))))
    return numbered.mapInArrow(classify_partition, schema)


def _text_index(column: str, schema: StructType) -> int:
    index = column_index(column, schema.names, "the DataFrame", "column")
    if schema.names.count(column) > 1:
        raise UserError(
            f"the DataFrame has several columns {column!r}; give each column its own name"
        )
    kind = schema[column].dataType
    if not isinstance(kind, StringType | NullType):
        raise UserError(
            f"the column {column!r} of the DataFrame has the type {kind.simpleString()}, not string"
        )
    return index


def _shipped(frame: DataFrame, path: Path, digest: str) -> str:
    """Have Spark copy the bundle to the nodes; its name there.

    It travels as an archive, because Spark refuses a local directory outside of local mode.
    """
    name = f"sentiment-{digest[:16]}"
    context = frame.sparkSession.sparkContext
    if not any(archive.endswith(f"#{name}") for archive in context.listArchives):
        # A directory that Spark removes at the end.
        archive = Path(SparkFiles.getRootDirectory(), f"{name}.tar")
        with tarfile.open(archive, "w", dereference=True) as tar:
            tar.add(path, arcname=BUNDLE)
        context.addArchive(f"{archive}#{name}")
    return name


@lru_cache(maxsize=1)
def _classifier(bundle: str | None, digest: str, settings: Settings, cpus: int) -> LocalClassifier:
    """The classifier of this Python worker, which Spark keeps for the next partitions."""
    path = EMBEDDED_BUNDLE if bundle is None else Path(SparkFiles.get(bundle), BUNDLE)
    if sha256(path / MANIFEST) != digest:
        raise UserError(
            f"{path} on this node is not the driver's model; install the same version of "
            "sentiment-service on the driver and the nodes"
        )
    own = {"model": (path,), "runners": cpus, "threads": 1}
    return LocalClassifier(settings.model_copy(update=own), measure=False)
