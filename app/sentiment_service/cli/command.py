"""The ``sentiment`` command. Each subcommand imports what it needs, so that ``--help`` is quick."""

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sentiment_service.errors import UserError, interrupted, system_error
from sentiment_service.files import command as classify_command
from sentiment_service.files.command import LOCAL, add_input, input_fault, url_fault
from sentiment_service.installation import missing_extra
from sentiment_service.observability import logs
from sentiment_service.server.process import (
    check_ports,
    end_if_told,
    open_standard_files,
    raise_file_limit,
    return_long_blocks,
)
from sentiment_service.settings.credentials import Credentials
from sentiment_service.settings.formats import POSITIVE, count
from sentiment_service.settings.settings import Settings
from sentiment_service.settings.sources import (
    CommandParser,
    add_settings,
    add_settings_in_groups,
    add_version,
    check_key_variables,
    load_settings,
    read_credentials,
    sources,
    unknown_variables,
)
from sentiment_service.workers.worker_process import Assignment, worker_count

DESCRIPTION = """\
Tell whether short texts are positive, neutral or negative. A model for English is
included; sentiment-export makes bundles of other models.
"""
EXAMPLES = """\
examples:
  sentiment serve
  sentiment classify "I love this!" "worst service ever"
  sentiment classify --input reviews.csv --column review --output labels.csv
  sentiment COMMAND --help      all options of a command
"""

# The settings for a service that `bench` starts itself.
BENCH_SETTINGS = (*LOCAL, "workers")

NO_THREAD = "can't start new thread"  # Python's words

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 for success, 1 for a failure, 2 for wrong usage.

    130 means that Ctrl-C ended it.
    """
    # Nothing here computes with NumPy's BLAS. Its threads cost memory, and without enough of it
    # they crash the process.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    options = _parser().parse_args(arguments)
    flags = {name: value for name, value in vars(options).items() if name in Settings.model_fields}
    try:
        settings = load_settings(flags)
        if options.command == "serve":
            check_key_variables(os.environ, settings)
            assignment = Assignment.of_this_process()
            credentials = (
                Credentials.of_descriptor(assignment.credentials)
                if assignment
                else read_credentials(settings, flags)
            )
    except ValueError as error:
        _report(options, error)
        return 2
    try:
        if options.command == "serve":
            return _serve(settings, credentials, assignment, flags)
        for reason in unknown_variables(os.environ):
            _say(f"warning: {reason}")
        if fault := _fault(options, settings):
            _say(fault)
            return 2
        if options.command == "doctor":
            return _doctor(options, settings)
        if options.command == "bench":
            return _bench(options, settings, flags)
        return _classify(options, settings)
    except UserError as error:
        _report(options, error)
        return 1
    except ModuleNotFoundError as error:
        _report(options, missing_extra(error))
        return 1
    except (ImportError, MemoryError, SystemError) as error:  # SystemError: of NumPy
        if interrupted(error):
            return 130
        line = (str(error).strip().splitlines() or [repr(error)])[-1]
        reason = f"a package cannot be loaded (is there too little memory?): {line}"
        _report(options, UserError(reason))
        return 1
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            raise
        _report(options, UserError(f"{error}; raise the limit of threads or memory"))
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Without this, Python would print an error
        # at exit, when it flushes the rest of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # for example, the disk is full
        _report(options, UserError(system_error(error)))
        return 1


def _report(options: argparse.Namespace, error: Exception) -> None:
    """Print why the command failed, as one line. ``serve`` prints it in the form of its log."""
    log_format = "human"
    if options.command == "serve":
        # The settings may be what failed, so this looks at the flag and the environment itself.
        given = getattr(options, "log_format", None)
        log_format = given or os.environ.get("SENTIMENT_LOG_FORMAT", "auto")
    logs.report_failure(str(error), log_format)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="sentiment",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        usage="sentiment serve [OPTION]...",
        help="answer requests over HTTP, and over gRPC with --grpc-port",
        description="Answer requests over HTTP, and over gRPC with --grpc-port. Without options, "
        "the included model is served, and a page to try it, at http://127.0.0.1:8000. Each option "
        "can also be set in the environment: SENTIMENT_MAX_TEXTS=50 is --max-texts 50, and "
        "SENTIMENT_MULTI_LABEL=off is --single-label.",
    )
    add_settings_in_groups(serve)

    classify = commands.add_parser(
        "classify",
        usage="sentiment classify [OPTION]... [TEXT]...",
        help="classify texts and files of texts",
    )
    classify_command.add_arguments(classify)
    add_settings(classify, LOCAL, classify_command.DESCRIPTIONS)

    bench = commands.add_parser(
        "bench",
        usage="sentiment bench [OPTION]...",
        help="find out how many requests per second are answered in time",
    )
    _add_bench_arguments(bench)
    add_settings(bench, BENCH_SETTINGS, classify_command.DESCRIPTIONS)

    doctor = commands.add_parser(
        "doctor",
        help="check packages, GPU and model, or a running service, and say what helps",
        description="Check what serving needs: packages, CPU, GPU and its driver, and the model, "
        "with a batch of texts. On a GPU, compare the logits with those of the CPU. With --url, "
        "look at a running service instead: whether it can be reached, its keys, readiness, "
        "version and device, and which models answer. Print a line for each check, 'ok' or "
        "'PROBLEM' and what helps. The exit code is 1 if there is a problem.",
    )
    doctor.add_argument(
        "--url",
        help="look at the service at this URL; if it needs a key, set SENTIMENT_API_KEY in the "
        "environment",
    )
    model = {"model": classify_command.DESCRIPTIONS["model"]}
    add_settings(doctor, LOCAL, model)
    return parser


def _add_bench_arguments(bench: argparse.ArgumentParser) -> None:
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
    add_input(
        bench,
        "send the texts of a file, of any kind that `sentiment classify` reads [default: made-up "
        "English texts that are as long as tweets]",
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


def _serve(
    settings: Settings,
    credentials: Credentials,
    assignment: Assignment | None,
    flags: Mapping[str, str],
) -> int:
    open_standard_files()
    raise_file_limit()
    return_long_blocks()
    # OpenTelemetry, which FastAPI imports, would load these, and fail without their packages. Only
    # W3C's headers are read here.
    os.environ.pop("OTEL_PROPAGATORS", None)
    worker = None if assignment is None else assignment.number
    logs.configure(settings.log_level, settings.log_format, worker=worker)
    if assignment is None:
        logger.info("%s", sources(settings, flags))
        for reason in (*unknown_variables(os.environ), *credentials.doubts):
            logger.warning("%s", reason)
    try:
        from sentiment_service.exported_models import with_bundles, with_candidate

        if assignment is None:
            check_ports(settings)  # an export takes minutes
            settings = with_candidate(with_bundles(settings))
            if (workers := worker_count(settings)) > 1:
                from sentiment_service.workers import supervisor

                return supervisor.run(settings, credentials, workers)
            from sentiment_service.server.server import run

            return run(settings, credentials)
        from sentiment_service.workers import member

        return member.run(assignment.applied_to(settings), credentials, assignment)
    except Exception as error:
        end_if_told()
        if isinstance(error, (UserError, ImportError, MemoryError, SystemError, OSError)):
            raise
        logger.critical("the service failed", exc_info=True)
        return 1
    finally:
        logs.close()


def _fault(options: argparse.Namespace, settings: Settings) -> str | None:
    """What is wrong with the options; None if they are valid."""
    is_bench = options.command == "bench"
    if found := url_fault(options, BENCH_SETTINGS if is_bench else LOCAL):
        return found
    if options.command == "doctor":
        return None
    if len(settings.model) > 1 and not options.url:
        return f"{options.command} uses one model; give --model once"
    if not is_bench:
        return classify_command.fault(options)
    if options.json and not Path(options.json).parent.is_dir():
        return f"the directory {Path(options.json).parent} of --json does not exist"
    return input_fault(options)


def _say(line: str) -> None:
    print(f"sentiment: {line}", file=sys.stderr)


def _doctor(options: argparse.Namespace, settings: Settings) -> int:
    from sentiment_service.cli.findings import report

    if options.url is not None:
        from sentiment_service.cli.service_doctor import examine_service

        return report(examine_service(options.url, os.environ.get("SENTIMENT_API_KEY") or None))
    from sentiment_service.cli.doctor import examine

    return report(examine(settings))


def _bench(options: argparse.Namespace, settings: Settings, flags: Mapping[str, Any]) -> int:
    if not options.url:
        from sentiment_service.exported_models import with_bundles

        with_bundles(settings, _say)  # the service finds them there
    from sentiment_service.cli.bench import bench

    bench(options, {name: value for name, value in flags.items() if name in BENCH_SETTINGS})
    return 0


def _counts(value: str) -> list[int]:
    return [count(part.strip()) for part in value.split(",")]


def _classify(options: argparse.Namespace, settings: Settings) -> int:
    if sys.stdout is None and not options.output:
        raise UserError("standard output is closed; give --output FILE for the results")
    open_standard_files()
    if not options.url:
        from sentiment_service.exported_models import with_bundles

        settings = with_bundles(settings, _say)
    classify_command.classify(options, settings)
    return 0
