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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.service import ROOT
from benchmarks.tables import Row, table
from checks.cuda import graphs, packages, stand_ins
from model_export.checkpoint.architectures import ARCHITECTURES

FLASH = "FLASH_ATTENTION"
MOST_KERNELS = 130
# gelu_new adds its bias in a kernel of its own, in each of the 12 layers.
WITH_GELU_NEW = {"albert": 142, "big_bird": 142}
# Their relative positions are computed on the CPU, layer by layer.
COPIES = {"deberta": 12, "deberta-v2": 12}


@dataclass(frozen=True, slots=True)
class Seen:
    """What the provider did with a graph: its own log, and what it asked of CUDA."""

    log: str
    figures: dict[str, Any]

    def nodes(self, provider: str) -> int:
        """How many nodes the provider computes."""
        found = re.search(rf"placed on \[{provider}\]\. Number of nodes: (\d+)", self.log)
        return int(found[1]) if found else 0

    @property
    def copies(self) -> int:
        """Memcpy nodes, which copy between CPU and GPU in the middle."""
        found = re.search(r"(\d+) Memcpy nodes are added", self.log)
        return int(found[1]) if found else 0

    @property
    def attention(self) -> set[str]:
        """The kernels chosen for attention."""
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


def faults(model_type: str, seen: Seen) -> list[str]:
    """What is wrong with what was seen, a few words each."""
    figures = seen.figures
    expected = {
        f"{seen.copies} Memcpy nodes": seen.copies == COPIES.get(model_type, 0),
        "products that are not added up in fp32": figures["coarse"] == 0,
        f"memory grew by {figures['grown']} bytes": figures["grown"] <= 0,
        f"no memory ends in {figures['out_of_memory']}": figures["out_of_memory"] == "OutOfMemory",
        f"error 700 ends in {figures['illegal_address']}": figures["illegal_address"]
        == "DeviceLost",
        "waits for the GPU in the middle": not seen.waits,
    }
    if graphs.is_flat(model_type):
        on_cpu = seen.nodes("CPUExecutionProvider")
        most = WITH_GELU_NEW.get(model_type, MOST_KERNELS)
        expected |= {
            f"{on_cpu} nodes on the CPU": on_cpu == 0,
            f"{seen.kernels} kernels, more than {most}": seen.kernels <= most,
            f"attention by {', '.join(sorted(seen.attention)) or 'nothing'}": seen.attention
            == {FLASH},
        }
    return [words for words, right in expected.items() if not right]


def see(graph: Path, libraries: Path, site: Path) -> Seen:
    """Look at a graph in a process that has the packages and the libraries."""
    environment = os.environ | {
        "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
        "LD_LIBRARY_PATH": str(libraries),
        "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1",
    }
    report = graph.with_suffix(".json")
    command: list[str | Path] = [sys.executable, "-m", "checks.cuda.look", graph, report]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{graph.stem}: {done.stderr[-2000:]}")
    return Seen(done.stderr + done.stdout, json.loads(report.read_text()))


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m checks.cuda", description=__doc__)
    parser.add_argument("--only", action="append", choices=ARCHITECTURES, metavar="ARCHITECTURE")
    only = parser.parse_args().only or [*ARCHITECTURES]
    rows: list[Row] = []
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="cuda-check-") as name:
        folder, site = Path(name), packages.install()
        libraries = folder / "libraries"
        libraries.mkdir()
        stand_ins.build(site, libraries)
        for model_type in only:
            print(f"{model_type}: exporting and opening", flush=True)
            seen = see(graphs.make(folder, model_type), libraries, site)
            found += [f"{model_type}: {fault}" for fault in faults(model_type, seen)]
            on_cpu = seen.nodes("CPUExecutionProvider")
            rows.append(
                {
                    "architecture": model_type,
                    "nodes": on_cpu + seen.nodes("CUDAExecutionProvider"),
                    "on the CPU": on_cpu,
                    "Memcpy": seen.copies,
                    "kernels": seen.kernels,
                    "products": seen.figures["events"].count("p"),
                    "attention": ", ".join(sorted(seen.attention)) or "not fused",
                }
            )
    print("\n".join(table(rows)))
    print("\n".join(found) or "nothing is wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
