"""Classifies a DataFrame with Spark, and compares it with `sentiment classify`.

The same rows, columns and bits are expected: from Spark in this process, from two executors with a
bundle that Spark copies to them, and when Python workers are killed. Needs Java 17 or newer.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.service import descendants
from checks.cluster.rerun import rerun_with

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CPUS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000, help="rows to classify [%(default)s]")
    count = parser.parse_args().rows
    rerun_with("pyspark", "spark.txt")
    if shutil.which("java") is None:
        sys.exit("check_spark: needs Java 17 or newer: apt-get install openjdk-17-jre-headless")
    from checks.cluster.command import classified
    from checks.cluster.texts import rows

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "rows.parquet"
        expected = classified(rows(count), Path(folder))
        _check_local(source, expected)
        _check_executors(source, expected, Path(folder))


def _check_local(source: Path, expected: "pa.Table") -> None:
    """Spark in this process, with the embedded model: bits, and reuse of workers."""
    from sentiment_service.files import spark as job

    target = str(source.with_name("spark.parquet"))
    with _session(f"local[{CPUS}]") as session:
        rows = _rows(session, source).repartition(2 * CPUS).cache()
        job.classify_frame(rows).write.parquet(target)
        _compare(session.read.parquet(target), expected)
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "77")
        _compare(job.classify_frame(rows.filter("id < 1000")), expected, whole=False)
        odd = rows.filter("id < 10").withColumnRenamed("text", "a.`b")
        classified = job.classify_frame(odd, "a.`b").withColumnRenamed("a.`b", "text")
        _compare(classified, expected, whole=False)
        loads = [row.loads for row in rows.mapInArrow(_loads, "loads long").collect()]
        assert set(loads) == {1}, f"the Python workers loaded the model {loads} times"
        print("Spark, local: same rows, columns and bits; each Python worker loaded the model once")


def _loads(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    """How often this Python worker has loaded a model, once for each partition."""
    import pyarrow as pa
    from sentiment_service.files.spark import _classifier

    for _ in batches:
        pass
    yield pa.record_batch({"loads": [_classifier.cache_info().misses]})


def _check_executors(source: Path, expected: "pa.Table", directory: Path) -> None:
    """Two executors that get the bundle from the driver, while Python workers are killed."""
    from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE
    from sentiment_service.files import spark as job
    from sentiment_service.settings.settings import Settings

    bundle = directory / "my-bundle"
    shutil.copytree(EMBEDDED_BUNDLE, bundle)
    with _session(f"local-cluster[{CPUS},1,1024]") as session:
        rows = _rows(session, source).repartition(8 * CPUS)
        classified = job.classify_frame(rows, settings=Settings(model=(bundle,)))
        shutil.rmtree(bundle)  # Spark has a copy
        with _killing_workers() as killed:
            _compare(classified, expected)
        assert killed, "no Python worker was killed; use more rows"
        print(
            f"Spark, {CPUS} executors with a bundle that Spark copied: {len(killed)} Python "
            "workers were killed; same rows, columns and bits"
        )


@contextmanager
def _session(master: str) -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    options = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
    options["spark.ui.showConsoleProgress"] = "false"
    session = SparkSession.builder.master(master).config(map=options).getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def _rows(session: "SparkSession", source: Path) -> "DataFrame":
    return session.read.parquet(str(source))


def _compare(frame: "DataFrame", expected: "pa.Table", *, whole: bool = True) -> None:
    """Compare the rows with those of the same ids; without ``whole``, others may be missing."""
    found = frame.toArrow().sort_by("id")
    if not whole:
        assert found.num_rows
        expected = expected.take(found["id"])
    assert found.column_names == expected.column_names, found.column_names
    # Spark's lists have an element of another name.
    found = found.cast(expected.schema)
    for name in expected.column_names:
        assert found[name].equals(expected[name]), f"the column {name!r} differs"


@contextmanager
def _killing_workers() -> Iterator[list[int]]:
    """Kill a Python worker now and then; the list has the ids of those that were killed."""
    killed: list[int] = []
    stop = threading.Event()

    def run() -> None:
        while len(killed) < CPUS and not stop.wait(1):
            for worker in _python_workers()[:1]:
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def _python_workers() -> list[int]:
    """The processes that Spark's daemon for Python, which is below this process, has forked."""
    below = []
    for process in descendants(os.getpid()):
        with suppress(OSError):
            if b"pyspark.daemon" in Path(f"/proc/{process}/cmdline").read_bytes():
                below += descendants(process)
    return below


if __name__ == "__main__":
    main()
