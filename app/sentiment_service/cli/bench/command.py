"""The command ``sentiment bench``: a service, its load, and what it can take."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sentiment_service.atomic_files import write_text_atomically
from sentiment_service.cli.bench import report
from sentiment_service.cli.bench.arguments import OWN
from sentiment_service.cli.bench.picture import svg
from sentiment_service.cli.bench.search import FEWEST, Measurement, Step, best, search
from sentiment_service.cli.bench.server import own_service
from sentiment_service.cli.bench.target import Target
from sentiment_service.cli.bench.texts import texts_of_file, tweets
from sentiment_service.errors import UserError

MADE_UP = 4_096  # texts, if no file has them


def bench(options: Namespace, flags: Mapping[str, Any]) -> None:
    """Measure the service at the URL, or one that is started with these flags; print the result.

    Raises:
        UserError: the texts or the service cannot be used, or no rate keeps the goal.
        OSError: a file cannot be read or written.
    """
    texts = tweets(MADE_UP)
    if options.input:
        texts = texts_of_file(Path(options.input), options.column)
    curves: dict[int, list[Step]] = {}
    with ExitStack() as stack:
        if options.url:
            target = Target(options.url, os.environ.get("SENTIMENT_API_KEY"))
        else:
            _say("starting the service")
            own = own_service({name: value for name, value in flags.items() if name in OWN})
            target = Target(stack.enter_context(own).url)
        for count in options.texts_per_request:
            bodies = _bodies(texts, count)
            target.check(bodies[0])
            curves[count] = _steps(target, bodies, count, options)
            print(f"\n{report.conclusions(curves[count], count, options)}\n")
    if options.json:
        write_text_atomically(Path(options.json), report.document(curves, options))
    if options.picture:
        write_text_atomically(Path(options.picture), svg(curves, options.p99_ms))
    if not all(map(best, curves.values())):
        goal = f"{options.p99_ms:g} ms"
        raise UserError(f"no rate was answered within {goal}; give a longer --p99-ms")


def _bodies(texts: Sequence[str], count: int) -> list[str]:
    """Requests of ``count`` texts each. A file may have fewer texts than a request."""
    lists = [
        [texts[(begin + number) % len(texts)] for number in range(count)]
        for begin in range(0, len(texts), count)
    ]
    return [json.dumps({"inputs": one[0] if count == 1 else one}) for one in lists]


def _steps(target: Target, bodies: Sequence[str], count: int, options: Namespace) -> list[Step]:
    """Every step of the search with ``count`` texts a request; each is printed at once."""
    goal_ms = options.p99_ms
    measurement = Measurement(target, bodies, count, goal_ms, options.seconds)
    _say(f"requests of {report.texts(count)}, 99 of 100 within {goal_ms:g} ms")
    start = measurement.start()
    print(report.HEAD, flush=True)

    def measure(rate: float) -> Step:
        step = measurement.step(rate)
        print(report.row(step, goal_ms), flush=True)
        return step

    return search(measure, start, FEWEST / options.seconds)


def _say(line: str) -> None:
    print(f"sentiment: {line}", file=sys.stderr, flush=True)
