"""`sentiment classify --engine ray`: classify on the nodes of a Ray cluster.

The input is divided into parts (``parts.py``), and a Ray dataset has the description of a part in
each row. An actor reads the rows of a part itself, classifies them as the command does without an
engine, and writes the part's file. So the texts do not pass through Ray's object store, and a part
that is computed again, because a node or the driver was killed, replaces its file by an equal one.

Ray Data schedules the parts, restarts lost actors and shows the progress. The size of its pool of
actors must be able to shrink: a part of a lost actor waits until the actor has been restarted, and
that needs the CPUs of an actor that has no more parts.
"""

import logging
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import ray
import ray.data
from ray.exceptions import RayError

from app.config.settings import Settings
from app.engine.model.bundle import EMBEDDED_BUNDLE, MANIFEST, Bundle, sha256
from app.errors import CannotContinue, UserError
from app.files.cluster.actor_share import Share, actor_share
from app.files.cluster.object_store import Directory, InputFile, list_files
from app.files.cluster.ray_actor import Actor, Job, answered, value_of
from app.files.cluster.ray_cluster import connected, in_cluster, reason
from app.files.run import parts
from app.files.run.job import Tally
from app.files.run.parts import Part, divide, read_pieces
from app.files.run.plan import SUCCESS, Plan, check_output
from app.files.run.progress_bar import Warnings, summary


@dataclass(frozen=True, slots=True)
class RayOptions:
    """The command's options. The command line has already checked that they fit together.

    ``input`` and ``output`` are paths or addresses of an object store. ``address`` is ``auto``,
    ``local``, ``ray://HOST:PORT`` or ``HOST:PORT``.
    """

    input: str
    output: str
    column: str
    resume: bool
    address: str

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> Self:
        """The options as the command line gave them."""
        return cls(
            input=arguments.input,
            output=arguments.output,
            column=arguments.column or "text",
            resume=arguments.resume,
            address=arguments.address or "auto",
        )


def classify(options: RayOptions, settings: Settings) -> None:
    """Run the command.

    Raises:
        UserError: the cluster, an input, the model or an unfinished run cannot be used.
        OSError: a file cannot be read or written.
    """
    logging.basicConfig(handlers=[Warnings(logging.WARNING)])
    files = list_files(options.input)
    directory = Directory(options.output)
    directory.check_is_outside(options.input)
    check_output(directory, resume=options.resume)
    bundle = Bundle.open(settings.model[0] if settings.model else EMBEDDED_BUNDLE)
    with connected(options.address):
        share = actor_share(settings, ray.nodes())
        plan = Plan(_parts(files, options.column), _identity(options, settings, bundle))
        plan.begin(directory)
        before = plan.done(directory)
        started = time.monotonic()
        try:
            left = [n for n, part in enumerate(plan.parts) if part.name not in before]
            if left:
                run = _run if in_cluster() else _run_there
                value_of(run(left, Job.of(plan, directory, settings, bundle, share), share))
        except KeyboardInterrupt:
            print(f"sentiment: interrupted; {_saved(plan, directory)}", file=sys.stderr)
            raise
        except CannotContinue:
            raise
        except (UserError, OSError, RayError) as error:
            raise UserError(f"{reason(error)}; {_saved(plan, directory)}") from error
    tally = _complete(plan, directory)
    rows = tally.rows - sum(part.rows for part in before.values())
    print(summary(tally, rows, time.monotonic() - started), file=sys.stderr)


def _parts(files: Sequence[InputFile], column: str) -> list[Part]:
    """Read all files on the nodes, and divide them."""
    read = ray.remote(num_cpus=1)(answered(read_pieces))
    answers = ray.get([read.remote(file, column, parts.PART_ROWS) for file in files])
    return divide([value_of(answer) for answer in answers], parts.PART_ROWS)


def _identity(options: RayOptions, settings: Settings, bundle: Bundle) -> dict[str, Any]:
    return {
        "column": options.column,
        "model": bundle.manifest.name,
        "manifest": sha256(bundle.path / MANIFEST),
        "device": "cuda" if settings.device == "cuda" else "cpu",
        "precision": settings.precision,
        "max_text_chars": settings.max_text_chars,
    }


def _run(numbers: Sequence[int], job: Job, share: Share) -> dict[str, Any]:
    """Classify the parts with these numbers.

    Returns the answer of the first actor that failed, else the last answer.

    Raises:
        RayError: Ray failed.
    """
    actors = min(share.actors, len(numbers))
    pool = ray.data.ActorPoolStrategy(
        min_size=1, max_size=actors, initial_size=actors, max_tasks_in_flight_per_actor=1
    )
    rows = [{"part": number} for number in numbers]
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        Actor,
        fn_constructor_args=(job,),
        compute=pool,
        num_cpus=share.cpus,
        num_gpus=share.gpus or None,
    )
    answer: dict[str, Any] = {}
    for answer in dataset.iter_rows():
        if answer["fault"]:
            break
    return answer


def _run_there(numbers: Sequence[int], job: Job, share: Share) -> dict[str, Any]:
    """The same in a task of the cluster: Ray Data 2.60 does not work in a Ray client."""
    run = ray.remote(num_cpus=0, max_retries=0)(_run)
    answer: dict[str, Any] = ray.get(run.remote(numbers, job, share))
    return answer


def _complete(plan: Plan, directory: Directory) -> Tally:
    """Check that all parts are done, mark the directory as complete, and count.

    Raises:
        UserError: a part is not there.
    """
    done = plan.done(directory)
    total = Tally()
    for part in plan.parts:
        if part.name not in done:
            raise UserError(f"{part.name} is missing in {directory.address}; add --resume")
        total.add(done[part.name])
    directory.remove_leftovers()
    directory.write(SUCCESS, Path.touch)
    return total


def _saved(plan: Plan, directory: Directory) -> str:
    rows = sum(tally.rows for tally in plan.done(directory).values())
    return f"{rows} rows are saved; add --resume to continue"
