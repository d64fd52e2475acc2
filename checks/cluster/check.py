"""Runs ``sentiment classify --engine ray`` on a cluster of three nodes: ``make cluster-check``.

A worker node is killed in the middle of the run, then the command itself. The run is continued
with --resume, while a new node joins. Each row must be in the output once, with the same answer to
the last bit as without an engine. The nodes are processes on this machine: a head without CPUs and
two workers with one CPU each.
"""

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE

from benchmarks.service import free_port
from checks.cluster.ray_nodes import Cluster, Run, wait_while
from checks.cluster.texts import rows as made_up
from checks.support import environments

PACKAGES = Path(__file__).parent / "requirements/ray.txt"
# The rows are divided into about so many parts; a part has at least one chunk of 2,000 rows.
PARTS = 12
FILES = 7  # of the input, beside a large one
# What the command does first so that no node finds the bundle at its path.
ELSEWHERE = """
from dataclasses import replace
from pathlib import Path
from sentiment_service.files.cluster import ray_run
task_of = ray_run.ActorTask.of
def elsewhere(*arguments):
    task = task_of(*arguments)
    return replace(task, settings=task.settings.model_copy(update={"model": (Path("/nowhere"),)}))
ray_run.ActorTask.of = elsewhere
"""


def main() -> None:
    """Run the check; an AssertionError says what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="[default: %(default)s]")
    rows = parser.parse_args().rows
    python = environments.python(PACKAGES, service=True)
    # The sockets of Ray are in this folder, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as name, ExitStack() as stack:
        folder = Path(name)
        _write(folder, made_up(rows))
        plain = Run(
            python, ["0", f"--input={folder}/all.parquet", f"--output={folder}/plain.parquet"]
        )
        print("without an engine:", plain.result(), flush=True)
        cluster = Cluster(python, folder)
        stack.callback(cluster.close)
        cluster.start()
        check_mistakes(python, cluster, folder)
        check_shipping(python, cluster, folder)
        check_store(python, cluster, folder)
        check_kills(python, cluster, folder, rows)
    print("cluster-check: ok")


def _write(folder: Path, table: pa.Table) -> None:
    """Write the rows as ``all.parquet``, the first as ``few.parquet``, and as files in ``in/``."""
    pq.write_table(table, folder / "all.parquet")
    pq.write_table(table.slice(0, 100), folder / "few.parquet")
    (folder / "in").mkdir()
    # One large file, and several that are smaller than a part.
    large = table.num_rows * 2 // 3
    ends = [0, *(large + (table.num_rows - large) * n // FILES for n in range(FILES + 1))]
    for number, (start, end) in enumerate(pairwise(ends)):
        pq.write_table(table.slice(start, end - start), folder / "in" / f"{number:02}.parquet")


def _compare(found: pa.Table, folder: Path, *, whole: bool = False) -> None:
    """Compare rows with the first ones of the command without an engine, or with all of them."""
    expected = pq.read_table(folder / "plain.parquet").replace_schema_metadata()
    expected = expected if whole else expected.slice(0, found.num_rows)
    ids, wanted = found["id"].to_pylist(), expected["id"].to_pylist()
    missing = len(set(wanted) - set(ids))
    assert sorted(ids) == wanted, f"{len(ids)} rows, {len(set(ids))} different; {missing} missing"
    assert found.replace_schema_metadata().equals(expected), "other answers than without an engine"


def check_kills(python: Path, cluster: Cluster, folder: Path, rows: int) -> None:
    """Kill a node and the command while it runs, and continue the run."""
    output = folder / "killed"
    arguments = _on(cluster.address, f"{folder}/in", str(output), rows // PARTS)
    first = Run(python, arguments)
    wait_while(first.process, lambda: _parts(output) >= 2, 600, "the first parts are done")
    cluster.kill(cluster.workers[0])
    print(f"killed a node after {_parts(output)} parts", flush=True)
    wait_while(first.process, lambda: _parts(output) >= 5, 900, "parts are done without the node")
    first.process.kill()
    first.process.wait()
    print(f"killed the command after {_parts(output)} parts", flush=True)
    assert not (output / "_SUCCESS").exists(), "it was complete before; use more --rows"
    cluster.add_worker()
    lines = first.process.stdout.read() if first.process.stdout else ""
    assert not lines, lines
    print("continued:", Run(python, [*arguments, "--resume"]).result(), flush=True)
    said, _ = Run(python, [*arguments, "--resume"]).process.communicate(timeout=300)
    assert said.endswith("is complete; nothing is left to do\n"), said
    assert (output / "_SUCCESS").exists(), "there is no _SUCCESS"
    parts = sorted(output.glob("part-*.parquet"))
    _compare(pa.concat_tables(map(pq.read_table, parts)), folder, whole=True)
    print(f"{rows} rows in {len(parts)} parts: each once, and equal to the last bit", flush=True)


def check_mistakes(python: Path, cluster: Cluster, folder: Path) -> None:
    """What users get wrong ends with one line that says so, and within seconds."""
    few, columns = folder / "few.parquet", folder / "columns"
    columns.mkdir()
    (columns / "a.csv").write_text("text\nlove\n")
    (columns / "b.csv").write_text("body\nlove\n")
    here, nowhere = f"--address={cluster.address}", f"--address=127.0.0.1:{free_port()}"
    mistakes = {
        "no Ray cluster answers at": [nowhere, f"--input={few}"],
        "b.csv has no column 'text'": [here, f"--input={columns}"],
        "no node of the cluster has a GPU": [here, f"--input={few}", "--device=cuda"],
    }
    for words, arguments in mistakes.items():
        output = f"--output={folder}/mistake"
        line = Run(python, ["2000", "--engine=ray", output, *arguments]).error()
        assert words in line, line
        print("refused:", line, flush=True)


def check_shipping(python: Path, cluster: Cluster, folder: Path) -> None:
    """Nodes that lack the bundle get it from a client outside, and give the same answers."""
    bundle, output = folder / "bundle", folder / "shipped"
    shutil.copytree(EMBEDDED_BUNDLE, bundle)
    arguments = [
        *_on(cluster.client_address, f"{folder}/few.parquet", str(output)),
        f"--model={bundle}",
    ]
    try:
        summary = Run(python, arguments, ELSEWHERE).result()
    except AssertionError as error:  # Ray gives its own server 30 s, which a busy machine may need
        if "Starting Ray client server failed" not in str(error):
            raise
        summary = Run(python, arguments, ELSEWHERE).result()
    print("with a bundle of its own:", summary, flush=True)
    (part,) = output.glob("part-*.parquet")
    _compare(pq.read_table(part), folder)


def check_store(python: Path, cluster: Cluster, folder: Path) -> None:
    """Inputs and outputs in an object store, here Moto's of S3, give the same answers."""
    port = free_port()
    options = f"?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    command: list[str | Path] = [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with ExitStack() as stack:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(server.wait)
        stack.callback(server.terminate)
        wait_while(server, lambda: _answers(port), 60, "the object store starts")
        arguments = _on(
            cluster.address, f"s3://bucket/in/*.parquet{options}", f"s3://bucket/out{options}"
        )
        store = fs.S3FileSystem(
            access_key="any",
            secret_key="any",  # noqa: S106
            region="us-east-1",
            scheme="http",
            endpoint_override=f"127.0.0.1:{port}",
            allow_bucket_creation=True,
        )
        store.create_dir("bucket")
        local = fs.LocalFileSystem()
        fs.copy_files(f"{folder}/few.parquet", "bucket/in/few.parquet", local, store)
        print("in an object store:", Run(python, arguments).result(), flush=True)
        names = {info.base_name for info in store.get_file_info(fs.FileSelector("bucket/out"))}
        part = "part-00000-of-00001.parquet"
        assert names == {"_SUCCESS", "_plan.json", part}, names
        found = pq.read_table(f"bucket/out/{part}", filesystem=store)
    _compare(found, folder)


def _on(address: str, source: str, output: str, part_rows: int = 2000) -> list[str]:
    """The arguments of a run on the cluster."""
    engine = ("--engine=ray", f"--address={address}")
    return [str(part_rows), *engine, f"--input={source}", f"--output={output}"]


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _parts(output: Path) -> int:
    return len(list(output.glob("part-*.parquet")))


if __name__ == "__main__":
    main()
