"""The command ``sentiment bench``: a service, its load, and what it can take."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from app.atomic_files import write_text_atomically
from app.cli.bench import report
from app.cli.bench.arguments import OWN
from app.cli.bench.picture import svg
from app.cli.bench.search import FEWEST, Measurement, Step, best, search
from app.cli.bench.server import OwnService
from app.cli.bench.target import Target
from app.cli.bench.texts import texts_of_file, tweets
from app.errors import UserError

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
    with ExitStack() as stack:
        if options.url:
            target = Target(options.url, os.environ.get("SENTIMENT_API_KEY"))
        else:
            _say("starting the service")
            own = OwnService({name: value for name, value in flags.items() if name in OWN})
            target = Target(stack.enter_context(own).url)
        curves, failure = _curves(target, texts, options)
    print(report.table(curves))
    print(report.conclusions(curves, options.p99_ms, options.target_rps))
    if options.json:
        found = report.document(curves, options.p99_ms, options.target_rps)
        write_text_atomically(Path(options.json), json.dumps(found, indent=1) + "\n")
    if options.picture:
        write_text_atomically(Path(options.picture), svg(curves, options.p99_ms))
    if failure:
        raise failure


def _curves(
    target: Target, texts: Sequence[str], options: Namespace
) -> tuple[dict[int, list[Step]], UserError | None]:
    """The steps for each number of texts, and why the last has none that is good.

    Raises:
        UserError: the first has no steps at all.
    """
    curves: dict[int, list[Step]] = {}
    for count in options.texts_per_request:
        try:
            curves[count] = _curve(target, texts, count, options)
        except UserError as error:
            if not curves:
                raise
            return curves, error
        if not best(curves[count]):
            goal = f"{options.p99_ms:g} ms"
            return curves, UserError(f"no rate was answered within {goal}; give a longer --p99-ms")
    return curves, None


def _curve(target: Target, texts: Sequence[str], count: int, options: Namespace) -> list[Step]:
    """Every step of the search with requests of ``count`` texts."""
    # A file may have fewer texts than a request.
    lists = [
        [texts[(begin + number) % len(texts)] for number in range(count)]
        for begin in range(0, len(texts), count)
    ]
    bodies = [json.dumps({"inputs": one[0] if count == 1 else one}) for one in lists]
    target.check(bodies[0])
    measurement = Measurement(target, bodies, count, options.p99_ms, options.seconds)
    what = "text" if count == 1 else "texts"
    _say(f"requests of {count} {what}, 99 of 100 within {options.p99_ms:g} ms")

    def measure(rate: float) -> Step:
        step = measurement.step(rate)
        print(report.line(step, options.p99_ms), file=sys.stderr, flush=True)
        return step

    return search(measure, measurement.start(), FEWEST / options.seconds)


def _say(line: str) -> None:
    print(f"sentiment: {line}", file=sys.stderr, flush=True)
