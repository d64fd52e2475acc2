"""Runs the example of Ray Data, and kills an actor: each row once, with the command's bits."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.service import descendants
from checks.cluster.rerun import ROOT, rerun_with
from checks.support.waiting import wait

EXAMPLE = ROOT / "deploy/ray/classify_parquet.py"
FILES = 10
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32_000, help="[default: %(default)s]")
    count = parser.parse_args().rows
    rerun_with("ray", "ray.txt")
    import pyarrow as pa
    import pyarrow.parquet as pq

    from checks.cluster.command import classified
    from checks.cluster.texts import rows

    # The sockets of Ray are in this folder, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as name:
        folder = Path(name)
        expected = classified(rows(count), folder)
        (folder / "in").mkdir()
        ends = [count * number // FILES for number in range(FILES + 1)]
        for start, end in pairwise(ends):
            part = rows(count).slice(start, end - start)
            pq.write_table(part, folder / "in" / f"{start:06}.parquet")
        _run_with_a_kill(folder)
        found = pa.concat_tables(map(pq.read_table, sorted((folder / "out").glob("*.parquet"))))
    found = found.sort_by("id").combine_chunks()
    assert found["id"].to_pylist() == [*range(count)], "a row is missing or there twice"
    assert found.column_names == expected.column_names, found.column_names
    for column in expected.column_names:
        wanted = expected[column].combine_chunks()
        assert found[column].combine_chunks().equals(wanted), f"the column {column!r} differs"
    print(f"Ray Data: {count} rows, each once, with an actor killed; same columns and bits")


def _run_with_a_kill(folder: Path) -> None:
    """Run the example with two CPUs, and kill an actor when the first file is written."""
    code = (
        "import ray, runpy, sys; "
        f"ray.init(num_cpus=3, include_dashboard=False, _temp_dir='{folder}/ray'); "
        f"runpy.run_path('{EXAMPLE}', run_name='__main__')"
    )
    command = [sys.executable, "-c", code, f"{folder}/in", f"{folder}/out"]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | ENVIRONMENT, stdout=output, stderr=output
        )
        try:

            def written() -> bool:
                assert process.poll() is None, log.read_text()
                return any((folder / "out").glob("*.parquet"))

            wait(written, 900, "the first file is written")
            actors = _actors(process.pid)
            assert actors, "there is no actor"
            os.kill(actors[0], signal.SIGKILL)
            print(f"Ray Data: killed one of {len(actors)} actors", flush=True)
            assert process.wait(900) == 0, log.read_text()
        finally:
            for one in [*descendants(process.pid), process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)


def _actors(above: int) -> list[int]:
    """The processes that classify, below this one."""
    found = []
    for process in descendants(above):
        with suppress(OSError):
            if b"MapWorker" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
    return found


if __name__ == "__main__":
    main()
