"""Runs ``sentiment classify --engine ray`` on a cluster of three nodes: ``make cluster-check``.

A worker node is killed in the middle of the run, then the command itself. The run is continued
with --resume, while a new node joins. Each row must be in the output once, with the same answer to
the last bit as without an engine. The nodes are processes on this machine: a head without CPUs and
two workers with one CPU each. With --measure, the speeds are compared, too.
"""

import argparse
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pyarrow.parquet as pq
from pyarrow import fs

from app.engine.bundle import EMBEDDED_BUNDLE
from tests.support.own_environment import interpreter
from tests.support.serving import ROOT, free_port

REQUIREMENTS = ["ray[client,data]==2.60.0", "moto[server]==5.2.5"]
# The rows are divided into about so many parts; a part has at least one chunk of 2,000 rows.
PARTS = 12
# The command with parts of the size that the first argument says.
COMMAND = """
import sys
from app.cli import main
from app.files import parts
parts.PART_ROWS = int(sys.argv.pop(1))
exec(sys.argv.pop(1))
sys.exit(main())
"""
# What the command does first so that no node finds the bundle at its path.
ELSEWHERE = """
from dataclasses import replace
from pathlib import Path
from app.files import ray_engine
job_of = ray_engine.Job.of
def elsewhere(*arguments):
    job = job_of(*arguments)
    return replace(job, settings=job.settings.model_copy(update={"model": (Path("/nowhere"),)}))
ray_engine.Job.of = elsewhere
"""
GENERATE, COMPARE = (Path(__file__).with_name(f"{name}.py") for name in ("texts", "compare"))
# The cluster is only for those who know the token.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
# Of the object store, which accepts any key.
KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
ENVIRONMENT = {
    **os.environ,
    **TOKEN,
    **KEYS,
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(ROOT),
}


class Cluster:
    """A head and worker nodes of Ray, as processes. Each worker has one CPU."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._ray = python.with_name("ray")
        self._folder = folder
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._port = free_port()
        self._client_port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.client_address = f"ray://127.0.0.1:{self._client_port}"

    def start(self) -> None:
        """Start the head and two workers."""
        self._start(
            "--head",
            f"--port={self._port}",
            "--num-cpus=0",
            "--include-dashboard=false",
            f"--ray-client-server-port={self._client_port}",
            f"--temp-dir={self._folder}/ray",
        )
        self.workers = [self.add_worker(), self.add_worker()]

    def add_worker(self) -> "subprocess.Popen[bytes]":
        """Start a worker and wait until it has joined."""
        return self._start(f"--address={self.address}", "--num-cpus=1")

    def kill(self, node: "subprocess.Popen[bytes]") -> None:
        """End all processes of a node at once, as a power failure does."""
        for process in [node.pid, *_descendants(node.pid)]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        node.wait()

    def close(self) -> None:
        """End all nodes."""
        for node in reversed(self._nodes):
            self.kill(node)

    def _start(self, *options: str) -> "subprocess.Popen[bytes]":
        log = self._folder / f"node-{len(self._nodes)}.log"
        command: list[str | Path] = [
            self._ray,
            "start",
            *options,
            "--block",
            "--disable-usage-stats",
            # Ports that are free, so that clusters on the same machine do not meet.
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--dashboard-agent-listen-port=0",
            "--object-store-memory=100000000",
        ]
        with log.open("wb") as output:
            node = subprocess.Popen(command, env=ENVIRONMENT, stdout=output, stderr=output)
        self._nodes.append(node)
        _wait(lambda: "Ray runtime started" in log.read_text(), 60, "a node of Ray starts", node)
        return node


def main() -> int:
    """Run the check; the exit code is 1 if it fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="[default: %(default)s]")
    parser.add_argument("--model", metavar="DIR", help="bundle [default: the embedded one]")
    parser.add_argument("--measure", action="store_true", help="compare the speeds, too")
    options = parser.parse_args()
    if options.model:
        ENVIRONMENT["SENTIMENT_MODEL"] = str(Path(options.model).resolve())
    python = interpreter("cluster-check", REQUIREMENTS)
    # The sockets of Ray are in this folder, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as name, ExitStack() as stack:
        folder = Path(name)
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
    _wait(lambda: _parts(output) >= 2, 600, "the first parts are done", first.process)
    cluster.kill(cluster.workers[0])
    print(f"killed a node after {_parts(output)} parts", flush=True)
    _wait(lambda: _parts(output) >= 5, 900, "parts are done without the node", first.process)
    first.process.kill()
    first.process.wait()
    print(f"killed the command after {_parts(output)} parts", flush=True)
    assert not (output / "_SUCCESS").exists(), "it was complete before; use more --rows"
    cluster.add_worker()
    print("continued:", Run(python, [*arguments, "--resume"]).result(), flush=True)


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
    print("with a bundle of its own:", Run(python, arguments, ELSEWHERE).result(), flush=True)
    (part,) = output.glob("part-*.parquet")
    found, expected = pq.read_table(part), pq.read_table(folder / "plain.parquet")
    assert found.equals(expected.slice(0, found.num_rows)), "a shipped bundle gives other answers"


def check_store(python: Path, cluster: Cluster, folder: Path) -> None:
    """Inputs and outputs in an object store, here Moto's of S3, give the same answers."""
    port = free_port()
    options = f"?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    command: list[str | Path] = [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        _wait(lambda: _answers(port), 60, "the object store starts", server)
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
    idle = [_memory_mb(worker.pid) for worker in cluster.workers]
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


class Run:
    """A run of ``sentiment classify``."""

    def __init__(self, python: Path, arguments: Sequence[str], first: str = "") -> None:
        """Start it with the rows of a part and its arguments. It runs the code ``first`` before."""
        rows, *others = arguments
        command: list[str | Path] = [python, "-c", COMMAND, rows, first, "classify", *others]
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def result(self) -> str:
        """Wait for its end and return its summary."""
        _, errors = self.process.communicate(timeout=1_800)
        self.seconds = time.monotonic() - self._started
        assert self.process.returncode == 0, errors
        lines = errors.splitlines()
        first = next(n for n, line in enumerate(lines) if " rows in " in line)
        return "; ".join(" ".join(line.split()) for line in lines[first:])

    def error(self) -> str:
        """Wait for its end and return the line that says why it failed."""
        _, errors = self.process.communicate(timeout=180)
        assert self.process.returncode == 1, errors
        return next(line for line in errors.splitlines() if line.startswith("sentiment: "))


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


def _wait(
    condition: Callable[[], bool], seconds: float, what: str, process: "subprocess.Popen[Any]"
) -> None:
    """Wait until the condition is met while the process runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the process ended before: {what}"
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.1)


def _descendants(process: int) -> list[int]:
    """The children of a process, their children and so on."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [one for child in map(int, children) for one in (child, *_descendants(child))]


def _memory_mb(process: int) -> float:
    """The proportional memory (PSS) of a process and its descendants."""
    total = 0
    for one in (process, *_descendants(process)):
        lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


if __name__ == "__main__":
    sys.exit(main())
