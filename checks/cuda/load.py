"""Measures the CPU time of the service for each text, in front of a virtual GPU.

    python -m checks.cuda.load [--rounds N] [--workers N]… [--tflops N]…

ONNX Runtime's real CUDA provider starts the kernels of a flat graph of 12 layers, on the libraries
of ``stand_ins``: a wait for the GPU lasts as long as the products take at that speed. All services
run at once, and the load goes to them in turns. The client shares the CPUs with them, so CPU time
says more than throughput.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.cpu_time.turns import LONG_DEADLINE, Load, Plan, Started, measure, spread
from benchmarks.random_checkpoint import random_checkpoint, timed_export
from benchmarks.service import Server, Service
from benchmarks.subject import Subject
from benchmarks.tables import Row, conditions, table
from checks.cuda import graphs, packages, stand_ins
from checks.support.waiting import wait

LOADS = (Load(64, 16), Load(64, 1))
SECONDS = 2.0  # of load for each service in a round
TEXTS = 4_096  # that differ
# At the first speed, only what feeds the GPU takes time. The second is too slow for it, so many
# texts wait, and batches are large.
TFLOPS = (600.0, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m checks.cuda.load", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="[default: %(default)s]")
    parser.add_argument("--workers", type=int, action="append", help="[default: 1, 2 and 4]")
    parser.add_argument("--tflops", type=float, action="append", help="[default: 600 and 1]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cuda-load-") as name:
        folder = Path(name)
        variables = stand_ins.build(packages.install(), folder)
        checkpoint = random_checkpoint(folder / "checkpoint", "roberta", **graphs.SHAPE)
        timed_export(checkpoint, folder / "bundle", "--precision", "fp32,fp16")
        subject = Subject(
            "virtual", folder / "bundle", "fp16", TEXTS, SECONDS, LOADS[0].connections
        )
        services = [
            Started(
                f"{tflops:g} | {workers}", _serve(subject, folder, variables, tflops, workers), _ns
            )
            for tflops in options.tflops or TFLOPS
            for workers in options.workers or (1, 2, 4)
        ]
        print(*[f"{what}: {value}" for what, value in conditions().items()], sep="\n")
        plan = Plan(subject, options.rounds, LOADS, SECONDS)
        print("\n".join(table([*_rows(plan, services)])))


def _rows(plan: Plan, services: Sequence[Started]) -> Iterator[Row]:
    """The CPU time of each service for each text, by load."""
    for load, slices in measure(plan, services):
        for one, found in slices.items():
            tflops, workers = one.name.split(" | ")
            front, engine, dealing = np.array([part.cpu_us for part in found]).T / load.texts
            yield {
                "texts a request": load.texts,
                "TFLOP/s": tflops,
                "workers": workers,
                **spread("CPU µs a text", front + engine + dealing),
                "event loops": float(np.median(front)),
                "other threads": float(np.median(engine)),
                "supervisor": float(np.median(dealing)),
                "texts/s": load.texts * float(np.median([part.per_second for part in found])),
            }


def _serve(
    subject: Subject, folder: Path, variables: dict[str, str], tflops: float, workers: int
) -> Service:
    """The service on the virtual GPU, when all its workers serve."""
    flags = ("--device", "cuda", "--workers", str(workers), "--cache-dir", str(folder / "cache"))
    lock = folder / f"gpu-{tflops:g}-{workers}"
    lock.touch()
    speed = {"STAND_IN_TFLOPS": str(tflops), "STAND_IN_LOCK": str(lock)}
    service = subject.serve(*flags, *LONG_DEADLINE, variables=variables | speed)
    if workers > 1:
        wait(lambda: len(service.info()["workers"]) == workers, 60.0, "all workers serve")
    return service


def _ns(server: Server) -> tuple[int, int, int]:
    """CPU times until now: of the event loops, of the workers' other threads, of the supervisor."""
    _, *workers = server.processes()
    loops = others = 0
    for pid in workers or [server.pid]:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            spent = int((thread / "schedstat").read_text().split()[0])
            if thread.name == str(pid):
                loops += spent
            else:
                others += spent
    return loops, others, server.event_loop_ns() if workers else 0


if __name__ == "__main__":
    main()
