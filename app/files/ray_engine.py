"""`sentiment classify --engine ray`: classify on the nodes of a Ray cluster.

The input is divided into parts (``parts.py``), and a Ray dataset has the description of a part in
each row. An actor reads the rows of a part itself, classifies them as the command does without an
engine, and writes the part's file. So the texts do not pass through Ray's object store, and a part
that is computed again, because a node or the driver was killed, replaces its file by an equal one.

Ray Data schedules the parts, restarts lost actors and shows the progress. The size of its pool of
actors must be able to shrink: a part of a lost actor waits until the actor has been restarted, and
that needs the CPUs of an actor that has no more parts.
"""

import json
import logging
import os
import socket
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np
import ray
import ray.data
from numpy.typing import NDArray
from ray.exceptions import RayError

from app.engine.bundle import EMBEDDED_BUNDLE, MANIFEST, SIDE_FILES, Bundle, sha256
from app.engine.machine.cpu import available_cpus
from app.errors import UserError
from app.files import parts
from app.files.job import Tally
from app.files.local import LocalClassifier
from app.files.object_store import Directory, InputFile, list_files
from app.files.parts import PLAN as PLAN_FILE
from app.files.parts import SUCCESS, Part, Plan, divide, plan_digest, read_pieces, write_part
from app.files.progress_bar import Warnings, summary
from app.settings import Settings

# The CPUs of an actor on larger nodes: one process reads and tokenises for so many runners, and
# they share one copy of the weights.
ACTOR_CPUS = 4
# A cluster must accept a connection within so many seconds.
CONNECT_S = 5.0
# Ray reads these when it starts. It sends usage statistics by default, and its C++ code writes
# warnings to standard error that users can do nothing about.
VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}


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
    bundle = Bundle.open(settings.model[0] if settings.model else EMBEDDED_BUNDLE)
    with connected(options.address):
        share = actor_share(settings, ray.nodes())
        plan = Plan(_parts(files, options.column), _identity(options, settings, bundle))
        plan.begin(directory, resume=options.resume)
        before = plan.done(directory)
        started = time.monotonic()
        try:
            _run(plan, before, _Job.of(plan, directory, settings, bundle, share), share)
        except KeyboardInterrupt:
            print(f"sentiment: interrupted; {_saved(plan, directory)}", file=sys.stderr)
            raise
        except (UserError, OSError) as error:
            raise UserError(f"{error}; {_saved(plan, directory)}") from error
    tally = _complete(plan, directory)
    rows = tally.rows - sum(part.rows for part in before.values())
    print(summary(tally, rows, time.monotonic() - started), file=sys.stderr)


@dataclass(frozen=True)
class Share:
    """What each actor gets: CPUs and GPUs of its node; and how many actors the cluster has."""

    cpus: int
    gpus: int
    actors: int


def actor_share(settings: Settings, nodes: Sequence[Mapping[str, Any]]) -> Share:
    """The share that leaves the fewest CPUs idle, unless the settings say how many to use.

    Ray only counts CPUs: an actor may run on all of its node. So the actor's runners and threads
    are set to its share. ``nodes`` is what ``ray.nodes()`` returns.

    Raises:
        UserError: no node has so many CPUs, or CUDA was asked for and none has a GPU.
    """
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    wanted = (settings.runners or 1) * (settings.threads or 1)
    if settings.device == "cuda":
        gpu_nodes = [(int(r.get("GPU", 0)), int(r.get("CPU", 0))) for r in resources]
        shares = [cpus // gpus for gpus, cpus in gpu_nodes if 0 < gpus <= cpus]
        if not shares:
            raise UserError(
                "CUDA was requested, but no node of the cluster has a GPU and a CPU for it"
            )
        size = max(wanted, min(ACTOR_CPUS, *shares))
        return Share(size, 1, sum(min(gpus, cpus // size) for gpus, cpus in gpu_nodes))
    cpu_counts = [int(r.get("CPU", 0)) for r in resources]
    sizes = [wanted] if settings.runners or settings.threads else range(1, ACTOR_CPUS + 1)
    used, size = max((sum(n // size * size for n in cpu_counts), size) for size in sizes)
    if not used:
        raise UserError(f"no node of the cluster has {size} CPUs, which one actor needs")
    return Share(size, 0, used // size)


@dataclass(frozen=True)
class _Job:
    """What an actor needs to know. ``files`` and ``parts`` are references to Ray's objects."""

    settings: Settings
    manifest: str
    files: "ray.ObjectRef[dict[str, NDArray[np.uint8]]]"
    parts: "ray.ObjectRef[list[Part]]"
    output: str
    plan: str
    version: str

    @classmethod
    def of(
        cls, plan: Plan, directory: Directory, settings: Settings, bundle: Bundle, share: Share
    ) -> Self:
        """Put the parts and the bundle where each node can fetch them."""
        runners = settings.runners or max(1, share.cpus // (settings.threads or 1))
        changes = {
            # Without --device cuda an actor has no GPU, whatever its node has.
            "device": "cuda" if share.gpus else "cpu",
            "runners": runners,
            "threads": settings.threads or max(1, share.cpus // runners),
        }
        names = [] if bundle.path == EMBEDDED_BUNDLE else _bundle_files(bundle, settings)
        return cls(
            settings=settings.model_copy(update=changes),
            manifest=sha256(bundle.path / MANIFEST),
            files=ray.put({name: np.fromfile(bundle.path / name, np.uint8) for name in names}),
            parts=ray.put(plan.parts),
            output=directory.address,
            plan=plan.digest,
            version=version("sentiment-service"),
        )

    def classifier(self) -> LocalClassifier:
        """Load the model on this node: from the same path if the same bundle is there."""
        measure = self.settings.device == "cuda"
        path = self.settings.model[0] if self.settings.model else EMBEDDED_BUNDLE
        manifest = path / MANIFEST
        if not self.settings.model or (manifest.is_file() and sha256(manifest) == self.manifest):
            return LocalClassifier(self.settings, measure=measure)
        with tempfile.TemporaryDirectory(prefix="sentiment-") as folder:
            for name, content in ray.get(self.files).items():
                copy = Path(folder, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                content.tofile(copy)
            settings = self.settings.model_copy(update={"model": (Path(folder),)})
            return LocalClassifier(settings, measure=measure)

    def check_node(self) -> None:
        """Check what must be the same on this node as where the command runs.

        Raises:
            UserError: it is not.
        """
        if (found := version("sentiment-service")) != self.version:
            raise UserError(
                f"sentiment-service {found} is installed there, and {self.version} where the "
                "command runs; install the same version"
            )
        if not self.settings.model and sha256(EMBEDDED_BUNDLE / MANIFEST) != self.manifest:
            raise UserError("its embedded model is another one; install the same version")
        saved = Directory(self.output).read(PLAN_FILE)
        if saved is None or plan_digest(json.loads(saved)) != self.plan:
            raise UserError(
                f"{self.output} is not the directory that the command sees; --output must be on a "
                "file system that all nodes share, or in an object store"
            )


class _Actor:
    """Classifies parts. It loads the model once.

    A fault is an answer and not an exception, because Ray would show the user a traceback of the
    actor.
    """

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._prepared = _answer(self._prepare)()

    def _prepare(self) -> tuple[LocalClassifier, Directory, list[Part]]:
        self._job.check_node()
        return self._job.classifier(), Directory(self._job.output), ray.get(self._job.parts)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if self._prepared["fault"]:
            return self._prepared
        classifier, directory, planned = self._prepared["value"]
        return _answer(write_part)(planned[row["part"]], classifier, directory, self._job.plan)


def _answer(function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """The function, with what it returns as ``value`` or why it failed as ``fault``."""

    def answer(*arguments: Any) -> dict[str, Any]:
        try:
            return {"value": function(*arguments), "fault": ""}
        except (UserError, OSError) as error:
            return {"value": None, "fault": f"node {ray.util.get_node_ip_address()}: {error}"}

    return answer


def _value(answer: dict[str, Any]) -> Any:
    if answer["fault"]:
        raise UserError(answer["fault"])
    return answer["value"]


def _parts(files: Sequence[InputFile], column: str) -> list[Part]:
    """Read all files on the nodes, and divide them."""
    read = ray.remote(num_cpus=1)(_answer(read_pieces))
    answers = ray.get([read.remote(file, column, parts.PART_ROWS) for file in files])
    return divide([_value(answer) for answer in answers], parts.PART_ROWS)


def _identity(options: RayOptions, settings: Settings, bundle: Bundle) -> dict[str, Any]:
    return {
        "column": options.column,
        "model": bundle.manifest.name,
        "manifest": sha256(bundle.path / MANIFEST),
        "device": "cuda" if settings.device == "cuda" else "cpu",
        "precision": settings.precision,
        "max_text_chars": settings.max_text_chars,
    }


def _bundle_files(bundle: Bundle, settings: Settings) -> list[str]:
    """The bundle's files that an actor can need."""
    variants = [
        variant
        for precision, variant in bundle.manifest.variants.items()
        if settings.precision in ("auto", precision)
    ]
    data = [variant.data.file for variant in variants if variant.data is not None]
    return [MANIFEST, *SIDE_FILES, *(variant.file for variant in variants), *data]


def _run(plan: Plan, done: Container[str], job: _Job, share: Share) -> None:
    """Classify the parts that are not done yet.

    Raises:
        UserError: an actor could not work, or Ray failed.
    """
    left = [{"part": number} for number, part in enumerate(plan.parts) if part.name not in done]
    if not left:
        return
    actors = min(share.actors, len(left))
    pool = ray.data.ActorPoolStrategy(
        min_size=1, max_size=actors, initial_size=actors, max_tasks_in_flight_per_actor=1
    )
    dataset = ray.data.from_items(left, override_num_blocks=len(left)).map(
        _Actor,
        fn_constructor_args=(job,),
        compute=pool,
        num_cpus=share.cpus,
        num_gpus=share.gpus or None,
    )
    for answer in dataset.iter_rows():
        _value(answer)


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


@contextmanager
def connected(address: str) -> Iterator[None]:
    """A connection to the cluster at ``address``; ``local`` starts one on this machine.

    Raises:
        UserError: there is no such cluster, or it has another version of Ray or Python.
    """
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if ":" in address:
        _check_reachable(address)
    options: dict[str, Any] = {}
    if address == "local":
        options = {"num_cpus": max(1, int(available_cpus())), "include_dashboard": False}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise UserError(_unusable(address, error)) from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = sys.stderr.isatty()
    try:
        yield
    except RayError as error:
        reason = str(getattr(error, "cause", None) or error).strip().splitlines() or [repr(error)]
        raise UserError(f"Ray failed: {reason[-1]}") from error
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition("//")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise UserError(
            f"no Ray cluster answers at {address}: {error}; --address accepts auto, local, "
            "ray://HOST:PORT (by default port 10001) or HOST:PORT (6379)"
        ) from None


def _unusable(address: str, error: Exception) -> str:
    if address == "auto" and isinstance(error, ConnectionError):
        return (
            "no Ray cluster was found on this machine; start one with 'ray start --head', name one "
            "with --address, or let --address local start one for this run"
        )
    return f"the Ray cluster at {address} cannot be used: {' '.join(str(error).split())}"
