"""Runs all benchmarks and writes tables and plots to ``benchmarks/results``.

    python -m benchmarks [--only NAME]... [--rounds N] [--peers]

The models are the embedded one, and one with the shape of RoBERTa-base and random weights, which
``sentiment-export`` exports. A separate process sends requests to a real server process over
loopback. What is compared is measured in alternating rounds: a ratio is computed within each
round, and the result is the median of the rounds.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from benchmarks import report
from benchmarks.cpu_time.event_loop import beside_bare
from benchmarks.cpu_time.text_cost import text_cost
from benchmarks.cpu_time.worker_cost import worker_cost
from benchmarks.peers import speed
from benchmarks.random_checkpoint import random_checkpoint, timed_export
from benchmarks.sections import int8_speed, overload, serving
from benchmarks.subject import EMBEDDED, Goal, Subject
from benchmarks.tables import Row, conditions

RESULTS = Path(__file__).parent / "results"
WORK = Path(".bench")  # models, and the peers' environments
SHAPE = "RoBERTa-base"


def main() -> None:
    parser = argparse.ArgumentParser(
        "benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="run only this section; repeat the option for several",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of each comparison (default: %(default)s)"
    )
    parser.add_argument(
        "--peers", action="store_true", help="measure other projects' servers as well"
    )
    options = parser.parse_args()
    # These are functions, because not every section needs their bundle, which is exported once.
    int8 = cache(lambda: Subject(f"{SHAPE} int8", _exported(), "int8", 384, 8.0, 32))
    fp32 = cache(lambda: Subject(f"{SHAPE} fp32", _exported(), "fp32", 128, 12.0, 32))
    rounds = options.rounds
    sections: dict[str, Callable[[], Iterator[Row | Goal]]] = {
        "embedded against ideal": lambda: serving.against_ideal(
            EMBEDDED, rounds, {1: 0.75, 16: 0.93}
        ),
        "int8 against ideal": lambda: serving.against_ideal(int8(), rounds, {1: 0.93, 16: 0.96}),
        "CPU time of a text": lambda: text_cost(EMBEDDED, max(rounds, 9), {16: 1.12, 1: None}),
        "workers": lambda: worker_cost(EMBEDDED, max(rounds, 9), (1, 16)),
        "sessions": lambda: (
            row
            for subject, checkpoint in ((EMBEDDED, None), (int8(), WORK / SHAPE))
            for row in int8_speed.sessions(subject, checkpoint, max(rounds, 9))
        ),
        "int8 by shape": lambda: int8_speed.by_shape(rounds),
        "event loop": lambda: beside_bare(EMBEDDED, max(rounds, 9)),
        "embedded by connections": lambda: serving.sweep(EMBEDDED),
        "int8 by connections": lambda: serving.sweep(int8()),
        "fp32 by connections": lambda: serving.sweep(fp32()),
        "lone request": lambda: serving.lone(int8(), rounds, most=1.12),
        "embedded, lone request": lambda: serving.lone(EMBEDDED, rounds, most=None),
        "overload": lambda: overload.overload(int8(), rounds),
        "probes": lambda: overload.probes(EMBEDDED, rounds),
        "mixed traffic": lambda: overload.mixed(int8(), rounds),
        "start and memory": lambda: (
            row for subject in (EMBEDDED, int8(), fp32()) for row in serving.start(subject)
        ),
        "growth by length": lambda: serving.growth(int8()),
    }
    if options.peers:
        sections["peers"] = lambda: speed.measure(
            (int8(), fp32()), WORK / SHAPE, WORK / "peers", rounds
        )
    for name in options.only or sections:
        if name not in sections:
            parser.error(f"there is no section {name!r}; choose from: {', '.join(sections)}")
    for name in options.only or sections:
        print(f"\n{name}", flush=True)
        found = []
        for item in sections[name]():
            print("  " + report.line(item), flush=True)
            found.append(item)
        report.keep(RESULTS, name, conditions(), found)
    report.write(RESULTS)


def _exported() -> Path:
    """The bundle of a model with the shape of RoBERTa-base."""
    bundle = WORK / f"{SHAPE}-bundle"
    if not bundle.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        checkpoint = WORK / SHAPE
        if not checkpoint.exists():
            random_checkpoint(checkpoint, "roberta", vocab_size=50_265)
        timed_export(checkpoint, bundle)
    return bundle


if __name__ == "__main__":
    main()
