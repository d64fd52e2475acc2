"""Models that are no bundles yet: exported once, in a process of its own, and kept.

A bundle of a hub repository is downloaded in the same way.
"""

import hashlib
import json
import logging
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentiment_service.cli.export_process import Say, export_once
from sentiment_service.config.settings import Settings, cache_directory
from sentiment_service.engine.model.bundle import FORMAT_VERSION, MANIFEST, HubCommit, Precision
from sentiment_service.errors import UserError, first_line

# The layout of the cache. The second number counts what an export decides by itself: models that
# earlier versions have exported are exported again, with the labels of today.
LAYOUT = f"format-{FORMAT_VERSION}.2"
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?", re.ASCII)
HUB_TIMEOUT_S = 5.0
# Every checkpoint has these. A damaged bundle has no weights of its own.
CONFIG, WEIGHTS = "config.json", (".safetensors", ".bin")

logger = logging.getLogger(__name__)


def with_bundles(settings: Settings, say: Say = logger.info, *, watch: bool = False) -> Settings:
    """The settings with a bundle in the place of each checkpoint directory and hub id.

    What is not exported yet is exported now. ``say`` gets lines about the progress. With ``watch``,
    a thread asks the hub whether the revisions of its models have moved, and logs it.

    Raises:
        UserError: a model does not exist, or cannot be exported; there are options for a
            checkpoint, and the models are not one checkpoint; or nothing can be refreshed.
    """
    if len(settings.model) > 1 and (flags := settings.checkpoint_flags()):
        raise UserError(f"{flags[0]} is for one model: export the others with sentiment-export")
    if not settings.model:
        settings.refuse_bundle("the embedded model")
    sources = [_source(path, settings) for path in settings.model]
    if settings.refresh and not any(source and source.revision for source in sources):
        raise UserError("--refresh is for a branch or tag of the hub: give a --model ORG/NAME")
    kept = [source and _kept(source, settings, say) for source in sources]
    for source in sources:
        if watch and source and source.revision:
            threading.Thread(target=_tell_move, args=(source,), name="hub", daemon=True).start()
    bundles = tuple(one or path for one, path in zip(kept, settings.model, strict=True))
    return settings.model_copy(update={"model": bundles})


@dataclass(frozen=True, slots=True)
class _Source:
    """A model that must be exported: a directory, or a repository of the hub at a revision.

    ``bundle`` is where its bundle is kept.
    """

    name: str  # as the user calls it
    place: str
    revision: str  # a branch or tag, which can move; "" if there is none
    words: list[str]  # of sentiment-export
    bundle: Path

    @property
    def commit(self) -> HubCommit:
        """The commit of the bundle that is kept."""
        held = _manifest(self.bundle)
        return HubCommit.model_validate(held.get("fetched") or held.get("source") or {})


def _source(path: Path, settings: Settings) -> _Source | None:
    """What must be exported for this model; None if it is a bundle, or nothing of a checkpoint."""
    revision = ""
    if path.exists():
        if (path / MANIFEST).exists() or not _is_checkpoint(path):
            settings.refuse_bundle(str(path))
            return None
        path = path.resolve()
        place, key, name = str(path), f"{path.name}-{_digest(path)}", path.name
    elif (hub_id := HUB_ID.fullmatch(str(path))) and path.parent.is_dir():
        raise UserError(
            f"there is no directory {path}; for a model of the hub with this id, give {path}@main"
        )
    elif hub_id:
        place, revision = hub_id.groups(default="main")
        key, name = str(path).replace("/", "--"), place.rpartition("/")[2]
    else:
        raise UserError(
            f"there is no directory {path}; give a bundle, a checkpoint directory, or a hub id, "
            "which has the form ORG/NAME"
        )
    directory = cache_directory(settings)
    if directory is None:
        raise UserError(f"{path} must be exported; give a directory for that with --cache-dir")
    options, precision = settings.checkpoint_flags(), _precision(settings)
    if options:
        key += f"-{hashlib.sha256(repr(options).encode()).hexdigest()[:16]}"
    bundle = directory / "models" / LAYOUT / key / precision / name
    words = [place, "--output", str(bundle), "--precision", precision, *options]
    if "@" in str(path) and revision:
        words += ["--revision", revision]
    moves = revision if revision and not COMMIT.fullmatch(revision) else ""
    return _Source(str(path), place, moves, words, bundle)


def _kept(source: _Source, settings: Settings, say: Say) -> Path:
    """The bundle of this source, exported now if it is not kept, or must be refreshed."""
    refresh = settings.refresh and source.revision and _manifest(source.bundle)
    newest = _newest_commit(source) if refresh else None

    def needed() -> bool:
        held = _manifest(source.bundle)
        return not held or (newest is not None and newest.revision != source.commit.revision)

    if needed():
        export_once(source.words, source.bundle, source.name, needed, say)
    else:
        for note in _manifest(source.bundle).get("notes", ()):
            if note.startswith("warning"):
                say(f"{source.name}: {note}")
    commit, cure = source.commit, "delete that directory to export it again"
    if source.revision:
        cure = "--refresh fetches it again if it has moved"
    which = f", {_described(commit)}," if commit.revision else ""
    logger.info("%s%s is kept in %s; %s", source.name, which, source.bundle, cure)
    return source.bundle


def _tell_move(source: _Source) -> None:
    """Log which commit the branch or tag has on the hub, if it is not the one that is kept."""
    with suppress(UserError):  # offline, the start says nothing
        newest = _newest_commit(source)
        if newest.revision != source.commit.revision:
            logger.warning(
                "%s of %s has moved to %s; --refresh fetches it",
                source.revision,
                source.place,
                _described(newest),
            )


def _described(commit: HubCommit) -> str:
    return f"commit {commit.revision}" + (f" of {commit.date[:10]}" if commit.date else "")


def _newest_commit(source: _Source) -> HubCommit:
    """The commit of its branch or tag on the hub.

    Raises:
        UserError: the hub does not tell.
    """
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(source.place, revision=source.revision, timeout=HUB_TIMEOUT_S)
    except Exception as error:  # its versions raise the errors of different libraries
        raise UserError(f"{source.name} cannot be refreshed: {first_line(error)}") from None
    moved = info.last_modified
    return HubCommit(
        repo_id=source.place, revision=info.sha, date=moved.isoformat() if moved else None
    )


def _manifest(bundle: Path) -> dict[str, Any]:
    """The manifest of a bundle that is kept; empty if there is none. The engine checks it."""
    try:
        held = json.loads((bundle / MANIFEST).read_bytes())
        return held if isinstance(held, dict) else {}
    except (OSError, ValueError):
        return {}


def _is_checkpoint(path: Path) -> bool:
    return (path / CONFIG).is_file() and any(file.suffix in WEIGHTS for file in path.iterdir())


def _precision(settings: Settings) -> Precision:
    """The variant that will be served."""
    if settings.precision != "auto":
        return settings.precision
    # Here, because it loads ONNX Runtime, which the supervisor of workers does not need.
    from sentiment_service.engine.machine.gpu import CUDA, cuda_state
    from sentiment_service.engine.model.device import CPU
    from sentiment_service.engine.model.load import VARIANTS

    on_gpu = settings.device != "cpu" and not cuda_state().problem
    return VARIANTS[CUDA if on_gpu or settings.device.startswith("cuda") else CPU][0]


def _digest(checkpoint: Path) -> str:
    """What changes when a file of the directory does."""
    files = sorted(file for file in checkpoint.iterdir() if file.is_file())
    facts = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
