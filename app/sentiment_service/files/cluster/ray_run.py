"""`sentiment classify --engine ray`: classify on the nodes of a Ray cluster.

A Ray dataset has the number of a part in each row. An actor reads the rows of a part itself,
classifies them as the command does without an engine, and writes the part's file. So the texts do
not pass through Ray's object store, and a part that is computed again, because a node or the driver
was killed, replaces its file by an equal one.

Ray Data schedules the parts, restarts lost actors and shows the progress. The size of its pool of
actors must be able to shrink: a part of a lost actor waits until the actor has been restarted, and
that needs the CPUs of an actor that has no more parts.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import ray.data
from ray.exceptions import RayError

from sentiment_service.config.settings import Settings
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE, MANIFEST, Bundle, sha256
from sentiment_service.errors import UserError
from sentiment_service.files.cluster.actor_share import Share, actor_share
from sentiment_service.files.cluster.object_store import (
    check_is_outside,
    list_files,
    open_directory,
)
from sentiment_service.files.cluster.parquet_parts import read_record
from sentiment_service.files.cluster.part_actor import ActorTask, PartActor, answered, value_of
from sentiment_service.files.cluster.ray_cluster import connected, reason
from sentiment_service.files.run import parts as run_parts
from sentiment_service.files.run.arguments import ClassifyOptions
from sentiment_service.files.run.directory import RunDirectory
from sentiment_service.files.run.parts import InputFile, Part, divide, read_pieces
from sentiment_service.files.run.plan import SUCCESS, ResumableRun, RunPlan, check_output
from sentiment_service.files.run.report import Warnings
from sentiment_service.files.tables.outputs import ResultColumns


def classify(options: ClassifyOptions, settings: Settings) -> None:
    """Run the command on a cluster.

    Raises:
        UserError: the cluster, an input, the model or an unfinished run cannot be used.
        OSError: a file cannot be read or written.
    """
    logging.basicConfig(handlers=[Warnings(logging.WARNING)])
    source, target = str(options.input), str(options.output)  # both are given: see ``fault``
    files = list_files(source)
    directory = open_directory(target)
    check_is_outside(target, source)
    check_output(directory, resume=options.resume)
    bundle = Bundle.open(settings.model[0] if settings.model else EMBEDDED_BUNDLE)
    with connected(options.address):
        share = actor_share(settings, ray.nodes())
        plan = RunPlan(_parts(files, options.column), _identity(options, settings, bundle))
        RayRun(plan, directory, settings, bundle, share).complete(resume=options.resume)


class RayRun(ResumableRun):
    """Classifies parts into Parquet files, whose footers hold the records."""

    def __init__(
        self,
        plan: RunPlan,
        directory: RunDirectory,
        settings: Settings,
        bundle: Bundle,
        share: Share,
    ) -> None:
        super().__init__(plan, directory)
        self._settings = settings
        self._bundle = bundle
        self._share = share

    def classify(self, parts: Sequence[Part]) -> None:
        names = {part.name for part in parts}
        numbers = [n for n, part in enumerate(self.plan.parts) if part.name in names]
        is_client = ray.util.client.ray.is_connected()  # at ray://
        run = _run_there if is_client else _run
        try:
            task = ActorTask.of(
                self.plan, self.directory, self._settings, self._bundle, self._share
            )
            value_of(run(numbers, task, self._share))
        except RayError as error:
            raise UserError(reason(error)) from error

    def finish(self) -> None:
        """Mark the directory as complete."""
        self.directory.remove_leftovers()
        self.directory.write(SUCCESS, Path.touch)

    def read_record(self, name: str) -> dict[str, Any] | None:
        return read_record(self.directory, name)


read = answered(read_pieces)


def _parts(files: Sequence[InputFile], column: str) -> list[Part]:
    """Read all files on the nodes, and divide them."""
    there = ray.remote(num_cpus=1)(read)
    rows = run_parts.PART_ROWS
    answers = ray.get([there.remote(file, column, rows) for file in files])
    return divide([value_of(answer) for answer in answers], run_parts.PART_ROWS)


def _identity(options: ClassifyOptions, settings: Settings, bundle: Bundle) -> dict[str, Any]:
    columns = ResultColumns(bundle.manifest.labels, multi_label=bundle.multi_label)
    return {
        "column": options.column,
        "columns of results": columns.names(()),
        "model": bundle.manifest.name,
        "manifest": sha256(bundle.path / MANIFEST),
        "device": "cuda" if settings.device == "cuda" else "cpu",
        "precision": settings.precision,
        "max_text_chars": settings.max_text_chars,
    }


def _run(numbers: Sequence[int], task: ActorTask, share: Share) -> dict[str, Any]:
    """Classify the parts with these numbers.

    Returns the answer of the first actor that failed, else the last answer.
    """
    actors = min(share.actors, len(numbers))
    pool = ray.data.ActorPoolStrategy(
        min_size=1, max_size=actors, initial_size=actors, max_tasks_in_flight_per_actor=1
    )
    rows = [{"part": number} for number in numbers]
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        PartActor,
        fn_constructor_args=(task,),
        compute=pool,
        num_cpus=share.cpus,
        num_gpus=share.gpus or None,
    )
    answer: dict[str, Any] = {}
    for answer in dataset.iter_rows():
        if answer["fault"]:
            break
    return answer


def _run_there(numbers: Sequence[int], task: ActorTask, share: Share) -> dict[str, Any]:
    """The same in a task of the cluster: Ray Data 2.60 does not work in a Ray client."""
    run = ray.remote(num_cpus=0, max_retries=0)(_run)
    answer: dict[str, Any] = ray.get(run.remote(numbers, task, share))
    return answer
