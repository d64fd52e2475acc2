"""Checks and measures the service on a GPU, in under ten minutes once all is installed.

``make gpu-check`` makes the environments and runs this. Each step is a process of its own with a
time limit, so the failure of one leaves the others alone. Without a GPU, the steps that need one
are skipped. Needs no network.

The exit code is 0 if every step that could run has run without a fault, else 1.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from benchmarks.tables import table
from checks.gpu.run_steps import CUDA, STEPS, WORKS, Result, run_step
from checks.gpu.setup import Device, SizeName

MINUTES = 10  # for all steps; those that do not fit are left out


def main() -> int:
    """Run the steps, and write JSON and table after each."""
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    out: Path = options.work / "gpu-check.json"
    results: list[Result] = []
    before = ""
    for result in check(options):
        results.append(result)
        print(f"{result.state:8}{result.title} ({result.seconds:.0f} s)", flush=True)
        if result.reason and result.reason != before:
            print(f"        {result.reason.splitlines()[-1]}", flush=True)
        before = result.reason
        document = {"device": options.device, "size": options.size}
        document["steps"] = [one.as_json() for one in results]
        out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(markdown(results), encoding="utf-8")
    print(f"\n{out}\n{out.with_suffix('.md')}")
    return int(any(result.state in ("failed", "stopped") for result in results))


def check(options: argparse.Namespace) -> Iterator[Result]:
    """Run all steps within ``MINUTES``."""
    end = time.monotonic() + 60 * MINUTES
    problem = ""
    for step in STEPS:
        left = end - time.monotonic()
        if options.only and step.name not in options.only and step is not STEPS[0]:
            continue
        if problem and step.needs_gpu:
            yield Result(step.name, step.title, "skipped", problem)
        elif left < 1:
            yield Result(step.name, step.title, "stopped", f"{MINUTES} minutes are over")
        else:
            python = sys.executable if step.exports else str(options.python)
            limit = min(step.seconds, left)
            result = run_step(step, python, options.work, options.device, options.size, limit)
            if step is STEPS[0] and options.device == "cuda":
                problem = _problem(result)
            yield result


def _problem(machine: Result) -> str:
    """Why CUDA cannot be used here; empty if it can, or if the step did not find out."""
    said = {row["what"]: row["value"] for row in machine.rows}
    found = str(said.get(CUDA, WORKS))
    return "" if found == WORKS else found


def markdown(results: list[Result]) -> str:
    """All results as a page."""
    lines = ["# GPU check", ""]
    summary = [
        {
            "step": result.title,
            "state": result.state,
            "s": result.seconds,
            "reason": result.reason.splitlines()[-1] if result.reason else "",
        }
        for result in results
    ]
    lines += table(summary)
    for result in results:
        if result.rows:
            lines += ["", f"## {result.title}", "", *table(result.rows)]
    return "\n".join(lines) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "checks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(".bench/gpu"),
        help="directory of the models and the results; models that it has are not made again "
        "[default: %(default)s]",
    )
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(sys.executable),
        help="Python of the environment to measure, which has onnxruntime-gpu and this package; "
        "the Python that runs the check exports the models [default: the same]",
    )
    parser.add_argument(
        "--device",
        choices=get_args(Device),
        default="cuda",
        help="cpu tries the steps on a machine without a GPU [default: %(default)s]",
    )
    parser.add_argument(
        "--size",
        choices=get_args(SizeName),
        default="base",
        help="tiny tries the steps with a small model; its figures say nothing "
        "[default: %(default)s]",
    )
    names = [step.name for step in STEPS[1:]]
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="STEP",
        help=f"run only this step; repeat the option for several; steps: {', '.join(names)}",
    )
    options = parser.parse_args()
    if not options.python.is_file():
        parser.error(f"--python: there is no {options.python}; make gpu-check makes it")
    return options


if __name__ == "__main__":
    sys.exit(main())
