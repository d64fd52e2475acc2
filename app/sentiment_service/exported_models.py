"""Models that are no bundles yet: exported once, in a process of its own, and kept.

A bundle of a hub repository is downloaded in the same way. The service never loads PyTorch. Of
several processes that want the same bundle, one exports it.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentiment_service.atomic_files import FileLock
from sentiment_service.engine.model.bundle import (
    CACHED,
    FORMAT_VERSION,
    MANIFEST,
    Bundle,
    HubCommit,
    Precision,
    bundles_to_use,
)
from sentiment_service.errors import OTHER_DISK, UserError, first_line, system_error
from sentiment_service.installation import child_command
from sentiment_service.settings.settings import AS_IT_SAYS, Settings, cache_directory

# The layout of the cache. The second number counts what an export decides by itself: models that
# earlier versions have exported are exported again, with the labels of today.
LAYOUT = f"format-{FORMAT_VERSION}.2"
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?", re.ASCII)
HUB_TIMEOUT_S = 5.0
CONFIG, WEIGHTS = "config.json", (".safetensors", ".bin", ".onnx")
COMMAND = child_command("from sentiment_export.cli import main")
ERROR = "sentiment-export: "  # how that command begins the line that says why it failed
# The hub's client redraws its bars ten times a second. A line of the log tells it this seldom.
BAR = re.compile(r"\d%\|")
BAR_EVERY_S = 5.0
CLEANS_UP_S = 5.0
UP = "\x1b[A"  # which moves a terminal's cursor before the next bar
SHOW_BARS = {"TQDM_POSITION": "-1"}  # the hub's client: also where no terminal is

Say = Callable[[str], object]

logger = logging.getLogger(__name__)


def with_bundles(settings: Settings, say: Say = logger.info) -> Settings:
    """The settings with a bundle in the place of each checkpoint directory and hub id.

    What is not exported yet is exported now. ``say`` gets lines about the progress.
    """
    if len(settings.model) > 1 and (flags := settings.checkpoint_flags()):
        raise UserError(f"{flags[0]} is for one model: export the others with sentiment-export")
    if not settings.model:
        settings.refuse_bundle("the embedded model")
    settings = settings.model_copy(update={"model": tuple(map(_of_cache, settings.model))})
    sources = [_source(path, settings) for path in settings.model]
    if settings.refresh and not any(source and source.revision for source in sources):
        raise UserError("--refresh is for a branch or tag of the hub: give a --model ORG/NAME")
    kept = [source and _kept(source, settings, say) for source in sources]
    bundles = tuple(one or path for one, path in zip(kept, settings.model, strict=True))
    return settings.model_copy(update={"model": bundles})


def with_candidate(settings: Settings, say: Say = logger.info) -> Settings:
    """The settings with a bundle as ``shadow``, with the labels of the first model, in any order.

    What is said of checkpoints is said of the model's, and not of the candidate's.
    """
    if settings.shadow is None:
        return settings
    as_it_says = settings.model_copy(update=AS_IT_SAYS.model_dump())
    path = _of_cache(settings.shadow)
    source = _source(path, as_it_says)
    path = path if source is None else _kept(source, as_it_says, say)
    model, candidate = Bundle.open(bundles_to_use(settings.model)[0]), Bundle.open(path)
    ours, theirs = model.manifest.labels, candidate.manifest.labels
    if {*ours} != {*theirs}:
        raise UserError(
            f"--shadow {settings.shadow}: a candidate must have the labels of the model, which are "
            f"{', '.join(ours)}, and not {', '.join(theirs)}"
        )
    if candidate.digest == model.digest:
        raise UserError(
            f"--shadow {settings.shadow} is the bundle that is served; give another one to try"
        )
    return settings.model_copy(update={"shadow": path})


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
        held = _manifest(self.bundle)
        return HubCommit.model_validate(held.get("fetched") or held.get("source") or {})


def _of_cache(path: Path) -> Path:
    """The snapshot of the main revision, if this is a model's directory in a hub cache."""
    ref, snapshots = path / "refs" / "main", path / "snapshots"
    if not path.resolve().name.startswith(CACHED) or not snapshots.is_dir():
        return path
    if not ref.is_file():
        raise UserError(f"{path} has no revision main: give one of the directories in {snapshots}")
    return snapshots / ref.read_text(encoding="utf-8").strip()


def _source(path: Path, settings: Settings) -> _Source | None:
    """What must be exported for this model; None if it is a bundle, or nothing of a checkpoint."""
    revision = ""
    if path.exists():
        if (path / MANIFEST).exists() or not _is_checkpoint(path):
            settings.refuse_bundle(str(path))
            return None
        path = path.resolve()
        model = path.parent.parent.name  # of a snapshot in a hub cache
        name = model.rpartition("--")[2] if model.startswith(CACHED) else path.name
        place, key = str(path), f"{path.name}-{_digest(path)}"
    elif hub_id := HUB_ID.fullmatch(str(path)):
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
    options, (precision, *others) = settings.checkpoint_flags(), _precisions(settings)
    if options:
        key += f"-{hashlib.sha256(repr(options).encode()).hexdigest()[:16]}"
    bundle = directory / "models" / LAYOUT / key / precision / name
    words = [place, "--output", str(bundle), "--precision", precision, *options]
    if others and revision:  # what else a bundle on the hub may have
        words += ["--else", ",".join(others)]
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
        if settings.precision not in ("auto", *held.get("variants", ())):
            return True  # with auto, another variant may have been fetched
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


def _described(commit: HubCommit) -> str:
    return f"commit {commit.revision}" + (f" of {commit.date[:10]}" if commit.date else "")


def _newest_commit(source: _Source) -> HubCommit:
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(source.place, revision=source.revision, timeout=HUB_TIMEOUT_S)
    except Exception as error:  # its versions raise the errors of different libraries
        status = getattr(getattr(error, "response", None), "status_code", None)
        token = "set HF_TOKEN to a token that may read it, or " if status in (401, 403, 404) else ""
        raise UserError(
            f"{source.name} cannot be refreshed: {first_line(error)}; {token}leave out --refresh "
            "to use what is kept"
        ) from None
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
    """Whether the export has something to say of it: it, or a directory in it, may be one."""
    within = (file for file in path.glob("*/*") if file.suffix in WEIGHTS)
    return any((folder / CONFIG).is_file() for folder in (path, *(file.parent for file in within)))


def _files(path: Path) -> list[Path]:
    """The files of a directory, and those in the directories in it that have ONNX graphs."""
    folders = {file.parent for file in path.glob("*/*.onnx")}
    return [file for folder in (path, *sorted(folders)) for file in folder.iterdir()]


def _precisions(settings: Settings) -> tuple[Precision, ...]:
    """The variant to serve, and the others that would be served in its place, best first."""
    if settings.precision != "auto":
        return (settings.precision,)
    # Here, because it loads ONNX Runtime, which the supervisor of workers does not need.
    from sentiment_service.engine.loading import VARIANTS
    from sentiment_service.engine.model.device import CPU, CUDA, cuda_state

    if settings.device.startswith("cuda"):
        return VARIANTS[CUDA]
    on_gpu = settings.device != "cpu" and not cuda_state().problem
    return tuple(dict.fromkeys((*(VARIANTS[CUDA] if on_gpu else ()), *VARIANTS[CPU])))


def _digest(checkpoint: Path) -> str:
    """What changes when a file of the directory does."""
    files = sorted(file for file in _files(checkpoint) if file.is_file())
    facts = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def export_once(
    words: Sequence[str], bundle: Path, model: str, needed: Callable[[], bool], say: Say
) -> None:
    """Run sentiment-export with these words, unless another process does; then wait for its end.

    It writes ``bundle``, and is not run if that is not ``needed`` any more. Errors name the
    ``model``.
    """
    try:
        bundle.parent.mkdir(parents=True, exist_ok=True)
        path = bundle.with_name(".lock")
        try:
            lock = FileLock(path)
        except BlockingIOError:
            say(f"another process is exporting {model}; waiting for it")
            lock = FileLock(path, wait=True)
    except OSError as error:
        raise UserError(
            f"{model} cannot be exported: {system_error(error)}; give another --cache-dir"
        ) from error
    with closing(lock):
        if needed():
            say(f"exporting {model}; this is done once")
            if not _manifest(bundle):  # what is left of one; the exporter replaces whole ones only
                shutil.rmtree(bundle, ignore_errors=True)
            _run([*COMMAND, *words], lock, model, say)


def _run(command: Sequence[str], lock: FileLock, model: str, say: Say) -> None:
    """Run the command, tell what it writes, and why it failed. It holds the lock until its end."""
    environment = {**os.environ, **SHOW_BARS, "PYTHONUNBUFFERED": "1"}
    reason, told = "it wrote nothing", time.monotonic()
    with subprocess.Popen(  # noqa: S603 - this interpreter, and a path or an id as an argument
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        pass_fds=[lock.fileno()],
        text=True,  # "\r" ends a line, too: a bar's
        errors="replace",
    ) as child:
        try:
            for line in (line.replace(UP, "").strip() for line in child.stdout or ()):
                if BAR.search(line):
                    if time.monotonic() - told < BAR_EVERY_S:
                        continue
                    told = time.monotonic()
                elif line:
                    reason = line
                if line and not line.startswith(ERROR):
                    say(line)
        except BaseException:
            child.terminate()  # it removes what it has written ...
            with suppress(subprocess.TimeoutExpired):
                child.wait(CLEANS_UP_S)
            child.kill()  # ... or else the next export does
            raise
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        guess = "; is there too little memory?" if name == "SIGKILL" else ""
        raise UserError(f"{model} cannot be used: its export was killed by {name}{guess}")
    if child.returncode:
        reason = reason.removeprefix(ERROR).replace(OTHER_DISK, "give a --cache-dir on another one")
        raise UserError(f"{model} cannot be used: {reason}")
