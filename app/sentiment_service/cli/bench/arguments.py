"""The options of ``sentiment bench``, and what can be wrong with them.

They are apart from the command itself, which loads slowly.
"""

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from sentiment_service.files.arguments import LOCAL, input_fault, url_fault
from sentiment_service.settings.formats import POSITIVE
from sentiment_service.settings.settings import Settings

OWN = (*LOCAL, "workers")  # settings for a service that the command starts itself


def add_arguments(bench: ArgumentParser) -> None:
    """Add all but the settings to the parser of ``bench``."""
    bench.description = (
        "Find the highest rate of requests at which 99 of 100 are answered in time, the CPU time "
        "of a text, the replicas for a rate, and the threshold for autoscaling. Requests arrive at "
        "random times, as those of many users do, and each counts from the time at which it was "
        "due. The result is a table in Markdown. Without --url, the command starts a service of "
        "its own, and ends it. Other settings of that service are read from the environment: "
        "SENTIMENT_TARGET_LATENCY_MS=20."
    )
    bench.add_argument(
        "--url",
        help="measure the service at this URL; if it needs a key, set SENTIMENT_API_KEY in the "
        "environment",
    )
    bench.add_argument(
        "--input",
        type=os.path.expanduser,
        metavar="FILE",
        help="send the texts of a file, of any kind that `sentiment classify` reads [default: "
        "made-up English texts that are as long as tweets]",
    )
    bench.add_argument(
        "--column",
        default="text",
        metavar="NAME",
        help="column of --input with the texts [default: %(default)s]",
    )
    bench.add_argument(
        "--p99-ms",
        type=POSITIVE,
        default=50.0,
        metavar="MS",
        help="time within which 99 of 100 requests shall be answered [default: 50]",
    )
    bench.add_argument(
        "--texts-per-request",
        type=_counts,
        default=[1],
        metavar="N[,N]",
        help="texts of each request; several numbers are measured one after the other [default: 1]",
    )
    bench.add_argument(
        "--seconds",
        type=POSITIVE,
        default=10.0,
        metavar="S",
        help="duration of each step, of which there are about ten [default: 10]",
    )
    bench.add_argument(
        "--target-rps",
        type=POSITIVE,
        metavar="N",
        help="print how many replicas answer so many requests per second",
    )
    bench.add_argument(
        "--json", type=os.path.expanduser, metavar="FILE", help="write every figure to a file"
    )
    bench.add_argument(
        "--picture",
        type=os.path.expanduser,
        metavar="FILE.svg",
        help="draw the latencies by rate",
    )


def fault(options: Namespace, settings: Settings) -> str | None:
    """What is wrong with the options; None if they are valid."""
    if found := url_fault(options, OWN) or input_fault(options):
        return found
    if len(settings.model) > 1 and not options.url:
        return "bench measures one model; give --model once"
    if options.picture and not options.picture.lower().endswith(".svg"):
        return f"{options.picture} must end in .svg"
    for name in ("json", "picture"):
        if (made := vars(options)[name]) and not Path(made).parent.is_dir():
            return f"the directory {Path(made).parent} of --{name} does not exist"
    return None


def _counts(value: str) -> list[int]:
    parts = value.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ArgumentTypeError(f"{value!r} is not a list of whole numbers above 0, such as 1,16")
    return [int(part) for part in parts]
