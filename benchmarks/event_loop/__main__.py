"""Shows how much CPU time the event loop uses for each request.

    python -m benchmarks.event_loop [--rounds N] [--seconds S] [--load CxN]... [--against TREE]

The servers run at once, each in a process of its own, and get load in turn. Median and quartiles
of the rounds are printed; a ratio is computed within each round. ``python -m benchmarks --only
"event loop" --only "event loop by part"`` measures the same and keeps the figures.
"""

import argparse
from itertools import chain

from benchmarks import report
from benchmarks.conditions import conditions
from benchmarks.event_loop.parts import by_part
from benchmarks.event_loop.slices import LOADS, Load, Plan
from benchmarks.event_loop.totals import beside_bare, beside_other_tree
from benchmarks.subject import EMBEDDED


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
        default=1.0,
        help="seconds of load for each server in a round (default: %(default)s)",
    )
    parser.add_argument(
        "--load",
        action="append",
        type=_load,
        metavar="CxN",
        help="C connections with N texts a request (default: 64x1, 64x16 and 1x1)",
    )
    parser.add_argument(
        "--against",
        metavar="TREE",
        help="compare only with the service of another tree; TREE is put into its PYTHONPATH",
    )
    options = parser.parse_args()
    plan = Plan(EMBEDDED, options.rounds, options.seconds, options.load or LOADS)
    print(". ".join(conditions().values()), flush=True)
    rows = (
        beside_other_tree(plan, options.against)
        if options.against
        else chain(beside_bare(plan), by_part(plan))
    )
    for row in rows:
        print(report.line(row), flush=True)


def _load(text: str) -> Load:
    connections, _, texts = text.partition("x")
    return Load(int(connections), int(texts))


if __name__ == "__main__":
    main()
