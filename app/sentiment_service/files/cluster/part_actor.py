"""What runs on the nodes of a Ray cluster: actors that load the model and classify parts."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np
import ray
from numpy.typing import NDArray

from sentiment_service.config.settings import Settings
from sentiment_service.engine.model.bundle import (
    EMBEDDED_BUNDLE,
    MANIFEST,
    SIDE_FILES,
    Bundle,
    bundles_to_use,
    sha256,
)
from sentiment_service.errors import CannotContinue, UserError
from sentiment_service.files.cluster.actor_share import Share
from sentiment_service.files.cluster.object_store import open_directory
from sentiment_service.files.cluster.parquet_parts import write_part
from sentiment_service.files.run.directory import RunDirectory
from sentiment_service.files.run.local import LocalClassifier
from sentiment_service.files.run.parts import Part
from sentiment_service.files.run.plan import PLAN, RunPlan, plan_digest


@dataclass(frozen=True)
class ActorTask:
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
        cls,
        plan: RunPlan,
        directory: RunDirectory,
        settings: Settings,
        bundle: Bundle,
        share: Share,
    ) -> Self:
        """Put the parts and the bundle where each node can fetch them."""
        changes: dict[str, Any] = {"device": "cuda"}  # LocalClassifier knows a GPU's runners
        if not share.gpus:
            # Without --device cuda an actor has no GPU, whatever its node has.
            runners = settings.runners or max(1, share.cpus // (settings.threads or 1))
            threads = settings.threads or max(1, share.cpus // runners)
            changes = {"device": "cpu", "runners": runners, "threads": threads}
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
        settings = self.settings
        manifest = bundles_to_use(settings.model)[0] / MANIFEST
        with tempfile.TemporaryDirectory(prefix="sentiment-") as folder:
            if settings.model and not (manifest.is_file() and sha256(manifest) == self.manifest):
                for name, content in ray.get(self.files).items():
                    copy = Path(folder, name)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    content.tofile(copy)
                settings = settings.model_copy(update={"model": (Path(folder),)})
            return LocalClassifier(settings, measure=settings.device == "cuda")

    def check_node(self) -> None:
        """Check what must be the same on this node as where the command runs.

        Raises:
            UserError: it is not.
        """
        if (installed := version("sentiment-service")) != self.version:
            raise UserError(
                f"sentiment-service {installed} is installed there, and {self.version} where the "
                "command runs; install the same version"
            )
        if not self.settings.model and sha256(EMBEDDED_BUNDLE / MANIFEST) != self.manifest:
            raise UserError("its embedded model differs; install the same version")
        saved = open_directory(self.output).read(PLAN)
        if saved is None or plan_digest(json.loads(saved)) != self.plan:
            raise UserError(
                f"{self.output} is not the directory that the command sees; --output must be on a "
                "file system that all nodes share, or in an object store"
            )


class PartActor:
    """Classifies parts. It loads the model once.

    A fault is an answer and not an exception, because Ray would show the user a traceback of the
    actor.
    """

    def __init__(self, task: ActorTask) -> None:
        self._task = task
        self._prepared = answered(self._prepare)()

    def _prepare(self) -> tuple[LocalClassifier, RunDirectory, list[Part]]:
        self._task.check_node()
        return self._task.classifier(), open_directory(self._task.output), ray.get(self._task.parts)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if self._prepared["fault"]:
            return self._prepared
        classifier, directory, planned = self._prepared["value"]
        return answered(write_part)(planned[row["part"]], classifier, directory, self._task.plan)


def answered(function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """The function, with what it returns as ``value`` or why it failed as ``fault``.

    ``final`` says that the run cannot be continued.
    """

    def answer(*arguments: Any) -> dict[str, Any]:
        try:
            return {"value": function(*arguments), "fault": "", "final": False}
        except (UserError, OSError) as error:
            fault = f"node {ray.util.get_node_ip_address()}: {error}"
            return {"value": None, "fault": fault, "final": isinstance(error, CannotContinue)}

    return answer


def value_of(answer: dict[str, Any]) -> Any:
    """What the function returned.

    Raises:
        UserError: it failed; ``CannotContinue`` if the run cannot be continued.
    """
    if answer["fault"]:
        raise (CannotContinue if answer["final"] else UserError)(answer["fault"])
    return answer["value"]


def _bundle_files(bundle: Bundle, settings: Settings) -> list[str]:
    """The bundle's files that an actor can need."""
    variants = [
        variant
        for precision, variant in bundle.manifest.variants.items()
        if settings.precision in ("auto", precision)
    ]
    data = [variant.data.file for variant in variants if variant.data is not None]
    return [MANIFEST, *SIDE_FILES, *(variant.file for variant in variants), *data]
