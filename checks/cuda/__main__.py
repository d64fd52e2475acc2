"""Opens the graphs for GPUs with ONNX Runtime's real CUDA provider, on a machine without a GPU.

    python -m checks.cuda [--only ARCHITECTURE]…

Prints a table, and a line for each fault. Exits with 1 if there is one.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentiment_export.checkpoint.architectures import ARCHITECTURES
from sentiment_service.engine.model.bundle import Precision

from benchmarks.tables import Row, table
from checks.cuda import graphs, packages, served, stand_ins
from checks.cuda.facts import facts, wrong

FLASH = "FLASH_ATTENTION"
MOST_KERNELS = 125
MOST_KERNELS_PADDED = 430  # of fp16: GELU, and layer norms with the sum before, are one each
# In fp32, the numbers of the tokens, which are counted on the CPU before all else.
COPIES_OF_FP32 = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """What the provider did with a graph: its own log, and what it asked of CUDA."""

    log: str
    figures: dict[str, Any]

    def nodes(self, provider: str) -> int:
        found = re.search(rf"placed on \[{provider}\]\. Number of nodes: (\d+)", self.log)
        return int(found[1]) if found else 0

    @property
    def copies(self) -> int:
        """Memcpy nodes, which copy between CPU and GPU in the middle."""
        found = re.search(r"(\d+) Memcpy nodes are added", self.log)
        return int(found[1]) if found else 0

    @property
    def attention(self) -> set[str]:
        # Two threads may write into one line.
        return {*re.findall(r"SdpaKernel=(MATH|[A-Z_]+_ATTENTION|[A-Z]+)", self.log)}

    @property
    def kernels(self) -> int:
        """Kernels and products of a batch."""
        return sum(event in "kp" for event in self.figures["events"])

    @property
    def waits(self) -> bool:
        """Whether the CPU waits for the GPU before the last kernel is started."""
        events = self.figures["events"]
        return bool(re.search("[sd]", events[: max(events.rfind("k"), events.rfind("p"))]))


def faults(model_type: str, precision: Precision, seen: Seen) -> list[str]:
    """What is wrong with what was seen, a few words each."""
    figures = seen.figures
    copies = COPIES_OF_FP32 if precision == "fp32" else 0
    expected = {
        f"{seen.copies} Memcpy nodes, not {copies}": seen.copies == copies,
        f"takes no option {', '.join(figures['not_taken'])}": not figures["not_taken"],
        "products that are not added up in fp32": figures["coarse"] == 0,
        f"memory grew by {figures['grown']} bytes": figures["grown"] <= 0,
        f"no memory ends in {figures['out_of_memory']}": figures["out_of_memory"] == "OutOfMemory",
        f"error 700 ends in {figures['illegal_address']}": figures["illegal_address"]
        == "DeviceLost",
        "waits for the GPU in the middle": not seen.waits,
    }
    if graphs.is_flat(model_type, precision):
        on_cpu = seen.nodes("CPUExecutionProvider")
        expected |= {
            f"{on_cpu} nodes on the CPU": on_cpu == 0,
            f"{seen.kernels} kernels, more than {MOST_KERNELS}": seen.kernels <= MOST_KERNELS,
            f"attention by {', '.join(sorted(seen.attention)) or 'nothing'}": seen.attention
            == {FLASH},
        }
    elif precision == "fp16":
        expected[f"{seen.kernels} kernels, more than {MOST_KERNELS_PADDED}"] = (
            seen.kernels <= MOST_KERNELS_PADDED
        )
    return [words for words, right in expected.items() if not right]


def see(graph: Path, variables: dict[str, str]) -> Seen:
    """Look at a graph in a process with these variables of ``stand_ins.build``."""
    environment = os.environ | variables | {"ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"}
    report = graph.with_suffix(".json")
    command: list[str | Path] = [sys.executable, "-m", "checks.cuda.look", graph, report]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{graph.stem}: {done.stderr[-2000:]}")
    return Seen(done.stderr + done.stdout, json.loads(report.read_text()))


def _row(name: str, seen: Seen) -> Row:
    on_cpu = seen.nodes("CPUExecutionProvider")
    return {
        "graph": name,
        "nodes": on_cpu + seen.nodes("CUDAExecutionProvider"),
        "on the CPU": on_cpu,
        "Memcpy": seen.copies,
        "kernels": seen.kernels,
        "products": seen.figures["events"].count("p"),
        "attention": ", ".join(sorted(seen.attention)) or "not fused",
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m checks.cuda", description=__doc__)
    parser.add_argument("--only", action="append", choices=ARCHITECTURES, metavar="ARCHITECTURE")
    only = parser.parse_args().only or [*ARCHITECTURES]
    rows: list[Row] = []
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="cuda-check-") as name:
        folder, site = Path(name), packages.install()
        wheel = facts(site)
        print("onnxruntime-gpu:", *[f"{what} {value};" for what, value in wheel.items()])
        found += _said(wrong(wheel))
        variables = stand_ins.build(site, folder)
        for model_type in only:
            print(f"{model_type}: exporting and opening", flush=True)
            for precision, graph in graphs.make(folder, model_type).items():
                seen = see(graph, variables)
                wrongs = faults(model_type, precision, seen)
                found += _said(f"{graph.stem}: {one}" for one in wrongs)
                rows.append(_row(graph.stem, seen))
        print("\n".join(table(rows)))
        print("serving", flush=True)
        found += _said(served.faults(folder / "served", variables))
    print(f"{len(found)} faults" if found else "nothing is wrong")
    return 1 if found else 0


def _said(faults: Iterable[str]) -> Iterator[str]:
    """Print each as soon as it is found: what comes after it may end the check."""
    for fault in faults:
        print(f"FAULT: {fault}", flush=True)
        yield fault


if __name__ == "__main__":
    sys.exit(main())
