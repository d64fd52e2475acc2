"""Runs ``sentiment classify --engine ray`` on a cluster of three nodes: ``make cluster-check``.

A worker node is killed in the middle of the run, then the command itself. The run is continued
with --resume, while a new node joins. Each row must be in the output once, with the same answer to
the last bit as without an engine. The nodes are processes on this machine: a head without CPUs and
two workers with one CPU each. With --measure, the speeds are compared, too.
"""

import argparse
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pyarrow.parquet as pq
from pyarrow import fs

from app.engine.model.bundle import EMBEDDED_BUNDLE
from benchmarks.service import free_port
from checks.cluster.ray_nodes import ENVIRONMENT, Cluster, Run, memory_mb, wait
from checks.support import environments

PACKAGES = Path(__file__).parent / "requirements/ray.txt"
# The rows are divided into about so many parts; a part has at least one chunk of 2,000 rows.
PARTS = 12
# What the command does first so that no node finds the bundle at its path.
ELSEWHERE = """
from dataclasses import replace
from pathlib import Path
from app.files.cluster import ray_run
task_of = ray_run.ActorTask.of
def elsewhere(*arguments):
    task = task_of(*arguments)
    return replace(task, settings=task.settings.model_copy(update={"model": (Path("/nowhere"),)}))
ray_run.ActorTask.of = elsewhere
"""
GENERATE, COMPARE = (Path(__file__).with_name(f"{name}.py") for name in ("texts", "compare"))


def main() -> int:
    """Run the check; the exit code is 1 if it fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="[default: %(default)s]")
    parser.add_argument("--model", metavar="DIR", help="bundle [default: the embedded one]")
    parser.add_argument("--measure", action="store_true", help="compare the speeds, too")
    options = parser.parse_args()
    if options.model:
        ENVIRONMENT["SENTIMENT_MODEL"] = str(Path(options.model).resolve())
    python = environments.python(PACKAGES, service=True)
    # The sockets of Ray are in this folder, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as name, ExitStack() as stack:
        folder = Path(name)
        # A user's own package of the name of ours comes first, here and on the nodes.
        (folder / "project/app").mkdir(parents=True)
        (folder / "project/app/__init__.py").write_text("raise SystemExit('not the service')")
        ENVIRONMENT["PYTHONPATH"] = f"{folder}/project:{ENVIRONMENT['PYTHONPATH']}"
        subprocess.run([python, GENERATE, folder, str(options.rows)], env=ENVIRONMENT, check=True)
        plain = Run(
            python, ["0", f"--input={folder}/all.parquet", f"--output={folder}/plain.parquet"]
        )
        summary = plain.result()
        print("without an engine:", summary, flush=True)
        cluster = Cluster(python, folder)
        stack.callback(cluster.close)
        cluster.start()
        check_mistakes(python, cluster, folder)
        check_shipping(python, cluster, folder)
        check_store(python, cluster, folder)
        if options.measure:
            speed = re.search(r"([\d,]+) rows/s", summary)
            assert speed is not None
            measure(python, cluster, folder, options.rows, float(speed[1].replace(",", "")))
        check_kills(python, cluster, folder, options.rows)
        done = subprocess.run([python, COMPARE, folder], env=ENVIRONMENT, check=False)
    print(f"cluster-check: {'ok' if done.returncode == 0 else 'FAILED'}")
    return done.returncode


def check_kills(python: Path, cluster: Cluster, folder: Path, rows: int) -> None:
    """Kill a node and the command while it runs, and continue the run."""
    output = folder / "killed"
    arguments = _on(cluster, folder / "in", output, rows)
    first = Run(python, arguments)
    wait(lambda: _parts(output) >= 2, 600, "the first parts are done", first.process)
    cluster.kill(cluster.workers[0])
    print(f"killed a node after {_parts(output)} parts", flush=True)
    wait(lambda: _parts(output) >= 5, 900, "parts are done without the node", first.process)
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
    shutil.copytree(ENVIRONMENT.get("SENTIMENT_MODEL") or EMBEDDED_BUNDLE, bundle)
    arguments = [
        "2000",
        "--engine=ray",
        f"--address={cluster.client_address}",
        f"--input={folder}/few.parquet",
        f"--output={output}",
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
    found, expected = pq.read_table(part), pq.read_table(folder / "plain.parquet")
    assert found.equals(expected.slice(0, found.num_rows)), "a shipped bundle gives other answers"


def check_store(python: Path, cluster: Cluster, folder: Path) -> None:
    """Inputs and outputs in an object store, here Moto's of S3, give the same answers."""
    port = free_port()
    options = f"?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    command: list[str | Path] = [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        wait(lambda: _answers(port), 60, "the object store starts", server)
        arguments = [
            "2000",
            "--engine=ray",
            f"--address={cluster.address}",
            f"--input=s3://bucket/in/*.parquet{options}",
            f"--output=s3://bucket/out{options}",
        ]
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
        server.terminate()
    expected = pq.read_table(folder / "plain.parquet")
    assert found.equals(expected.slice(0, found.num_rows)), "other answers in an object store"


def measure(
    python: Path, cluster: Cluster, folder: Path, rows: int, plain_rows_per_s: float
) -> None:
    """Print the throughput compared to the plain command, the start and a node's memory."""
    idle = [memory_mb(worker.pid) for worker in cluster.workers]
    few = Run(python, _on(cluster, folder / "few.parquet", folder / "measured-few", rows))
    few.result()
    all_rows = Run(python, _on(cluster, folder / "in", folder / "measured", rows))
    all_rows.result()
    rows_per_s = rows / (all_rows.seconds - few.seconds)
    print(
        f"start {few.seconds:.1f} s (with 100 rows, until the command ends); "
        f"after the start {rows_per_s:.0f} rows/s, {rows_per_s / plain_rows_per_s:.2f} of the "
        f"command without an engine; an idle worker node has {idle[0]:.0f} MB (PSS)",
        flush=True,
    )


def _on(cluster: Cluster, source: Path, output: Path, rows: int) -> list[str]:
    """The arguments of a run on the cluster."""
    return [
        str(rows // PARTS),
        "--engine=ray",
        f"--address={cluster.address}",
        f"--input={source}",
        f"--output={output}",
    ]


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _parts(output: Path) -> int:
    return len(list(output.glob("part-*.parquet")))


if __name__ == "__main__":
    sys.exit(main())
