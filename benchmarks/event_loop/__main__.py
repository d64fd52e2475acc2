"""Shows how much CPU time the event loop uses for each request.

    python -m benchmarks.event_loop [--rounds N] [--seconds S] [--against PYTHONPATH]

The servers run at once, each in a process of its own, and get load in turn. Median and quartiles
of the rounds are printed; a ratio is computed within each round. ``python -m benchmarks --only
"event loop"`` measures the same and keeps the figures.
"""

import argparse

from app.engine.bundle import EMBEDDED_BUNDLE
from benchmarks import report
from benchmarks.conditions import conditions
from benchmarks.event_loop.totals import LOADS, SLICE_SECONDS, against, totals
from benchmarks.serving import Subject


def main() -> None:
    """Measure with the embedded model and print the figures."""
    parser = argparse.ArgumentParser(
        "benchmarks.event_loop",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of each comparison (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SLICE_SECONDS,
        help="seconds of load for each server in a round (default: %(default)s)",
    )
    parser.add_argument(
        "--load",
        action="append",
        type=_load,
        metavar="CONNECTIONSxTEXTS",
        help="measure only this many connections and texts a request; repeat it for several",
    )
    parser.add_argument(
        "--against",
        metavar="PYTHONPATH",
        help="compare the service with that of another tree instead of with bare servers",
    )
    options = parser.parse_args()
    subject = Subject("embedded int8", EMBEDDED_BUNDLE, "int8", 2_000, 4.0, 64)
    how = subject, options.rounds, options.seconds, options.load or LOADS
    print(". ".join(conditions().values()), flush=True)
    for row in against(options.against, *how) if options.against else totals(*how):
        print(report.line(row), flush=True)


def _load(text: str) -> tuple[int, int]:
    connections, _, texts = text.partition("x")
    return int(connections), int(texts)


if __name__ == "__main__":
    main()
