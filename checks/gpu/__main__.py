"""Checks and measures the service on a GPU, in commands of under nine minutes.

``make gpu-check`` makes the environments and runs this. Each step is a process of its own with a
time limit, so the failure of one leaves the others alone. Without a GPU, the steps that need one
are skipped. Needs no network. Steps that do not fit in are run by the same command, given again:
it leaves out what has run without a fault, and runs last what has had its turn.

The exit code is 0 if every step that could run has run without a fault, else 1.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

from sentiment_service.atomic_files import write_text_atomically

from benchmarks.tables import table
from checks.gpu.run_steps import CUDA, STEPS, WORKS, Result, run_step
from checks.gpu.setup import Device, SizeName

MINUTES = 8.5  # for the steps of one command
NAME = "gpu-check.json"


def main() -> int:
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    options.results = options.results or options.work
    options.results.mkdir(parents=True, exist_ok=True)
    results = _earlier(options)
    before = ""
    for result in check(options, results.copy()):
        results[result.step] = result
        print(f"{result.state:8}{result.title} ({result.seconds:.0f} s)", flush=True)
        if result.reason and result.reason != before:
            print(f"        {result.reason.splitlines()[-1]}", flush=True)
        before = result.reason
        _write(options, [results[step.name] for step in STEPS if step.name in results])
    out = options.results / NAME
    print(f"\n{out}\n{out.with_suffix('.md')}")
    return int(any(result.state in ("failed", "stopped") for result in results.values()))


def _earlier(options: argparse.Namespace) -> dict[str, Result]:
    try:
        found = json.loads((options.work / NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if any(found[name] != getattr(options, name) for name in ("device", "size")):
        return {}
    return {step["step"]: Result(**step) for step in found["steps"]}


def _write(options: argparse.Namespace, results: list[Result]) -> None:
    """Write JSON and table, where the next command looks for them and where they are wanted."""
    document = {"device": options.device, "size": options.size}
    document["steps"] = [one.as_json() for one in results]
    content = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    for folder in {options.work, options.results}:
        write_text_atomically(folder / NAME, content)
        write_text_atomically((folder / NAME).with_suffix(".md"), markdown(results))


def check(options: argparse.Namespace, earlier: Mapping[str, Result]) -> Iterator[Result]:
    """Run the steps that are chosen, within ``MINUTES``; the first one always runs.

    Without a choice, these are all but those that were ok earlier.
    """
    end = time.monotonic() + 60 * MINUTES
    problem = ""
    chosen = options.only or [
        step.name for step in STEPS if step.name not in earlier or earlier[step.name].state != "ok"
    ]
    first, *rest = STEPS
    # One that takes all its time and fails leaves none to those behind it. So it runs last.
    rest.sort(key=lambda step: step.name in earlier and earlier[step.name].seconds > 0)
    for step in (first, *(step for step in rest if step.name in chosen)):
        left = end - time.monotonic()
        if problem and step.needs_gpu:
            yield Result(step.name, step.title, "skipped", problem)
        elif left < 1:
            if step.name not in earlier:
                reason = "no time was left; give the command again"
                yield Result(step.name, step.title, "stopped", reason)
        else:
            python = sys.executable if step.exports else str(options.python)
            limit = min(step.seconds, left)
            result = run_step(
                step, python, options.work, options.results, options.device, options.size, limit
            )
            if step is first and options.device == "cuda":
                problem = _problem(result)
            yield result


def _problem(machine: Result) -> str:
    """Why CUDA cannot be used here; empty if it can, or if the step did not find out."""
    said = {row["what"]: row["value"] for row in machine.rows}
    found = str(said.get(CUDA, WORKS))
    return "" if found == WORKS else found


def markdown(results: list[Result]) -> str:
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
        help="directory of the models and of what earlier commands have found; models that it has "
        "are not made again [default: %(default)s]",
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="directory that also gets the results, row by row [default: that of --work]",
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
        default=[],
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
