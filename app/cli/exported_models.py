"""Models that are no bundles yet: exported once, in a process of its own, and kept.

The service never loads PyTorch. A bundle of a hub repository is downloaded in the same way. Of
several processes that want the same bundle, one exports it.
"""

import hashlib
import json
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.atomic_files import FileLock
from app.cli.children import child_command
from app.config.settings import Settings, cache_directory
from app.engine.model.bundle import FORMAT_VERSION, MANIFEST, Precision
from app.errors import OTHER_DISK, UserError, system_error

# The layout of the cache. The second number counts what an export decides by itself: models that
# earlier versions have exported are exported again, with the labels of today.
LAYOUT = f"format-{FORMAT_VERSION}.1"
HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?", re.ASCII)
# Every checkpoint has these. A damaged bundle has no weights of its own.
CONFIG, WEIGHTS = "config.json", (".safetensors", ".bin")
# The next export removes what a killed one leaves.
COMMAND = child_command("from sentiment_service import export as main")
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

    Raises:
        UserError: a model does not exist, or cannot be exported; there are options for a
            checkpoint, and the models are not one checkpoint.
    """
    if len(settings.model) > 1 and (flags := settings.checkpoint_flags()):
        raise UserError(f"{flags[0]} is for one model: export the others with sentiment-export")
    if not settings.model:
        settings.refuse_bundle("the embedded model")
    sources = [_source(path, settings) for path in settings.model]
    kept = [source and _kept(source, say) for source in sources]
    bundles = tuple(one or path for one, path in zip(kept, settings.model, strict=True))
    return settings.model_copy(update={"model": bundles})


@dataclass(frozen=True, slots=True)
class _Source:
    """A model that must be exported: a directory, or a repository of the hub at a revision.

    ``bundle`` is where its bundle is kept.
    """

    name: str  # as the user calls it
    words: list[str]  # of sentiment-export
    bundle: Path


def _source(path: Path, settings: Settings) -> _Source | None:
    """What must be exported for this model; None if it is a bundle, or nothing of a checkpoint."""
    more: list[str] = []
    if path.exists():
        if (path / MANIFEST).exists() or not _is_checkpoint(path):
            settings.refuse_bundle(str(path))
            return None
        path = path.resolve()
        place, key, name = str(path), f"{path.name}-{_digest(path)}", path.name
    elif hub_id := HUB_ID.fullmatch(str(path)):
        place, revision = hub_id.groups()
        more = ["--revision", revision] if revision else []
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
    words = [place, "--output", str(bundle), "--precision", precision, *options, *more]
    return _Source(str(path), words, bundle)


def _kept(source: _Source, say: Say) -> Path:
    """The bundle of this source, exported now if it is not kept."""
    held = _manifest(source.bundle)
    for note in held.get("notes", ()):
        if note.startswith("warning"):
            say(f"{source.name}: {note}")
    if not held:
        _export(source, say)
        held = _manifest(source.bundle)
    commit = (held.get("fetched") or held.get("source") or {}).get("revision")
    logger.info(
        "%s%s is kept in %s; delete that directory to export it again",
        source.name,
        f", commit {commit}," if commit else "",
        source.bundle,
    )
    return source.bundle


def _export(source: _Source, say: Say) -> None:
    """Run sentiment-export, unless another process does so meanwhile.

    Raises:
        UserError: it failed, or the cache directory cannot be written.
    """
    try:
        source.bundle.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(source, say)
    except OSError as error:
        raise UserError(
            f"{source.name} cannot be exported: {system_error(error)}; give another --cache-dir"
        ) from error
    with closing(lock):
        if not _manifest(source.bundle):
            say(f"exporting {source.name}; this is done once")
            _run(source, lock, say)


def _locked(source: _Source, say: Say) -> FileLock:
    path = source.bundle.with_name(".lock")
    try:
        return FileLock(path)
    except BlockingIOError:
        say(f"another process is exporting {source.name}; waiting for it")
        return FileLock(path, wait=True)


def _run(source: _Source, lock: FileLock, say: Say) -> None:
    """Run the export, tell what it writes, and why it failed. It holds the lock until its end."""
    environment = {**os.environ, **SHOW_BARS, "PYTHONUNBUFFERED": "1"}
    reason, told = "it wrote nothing", time.monotonic()
    with subprocess.Popen(  # noqa: S603 - this interpreter, and a path or an id as an argument
        [*COMMAND, *source.words],
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
        raise UserError(f"{source.name} cannot be used: its export was killed by {name}{guess}")
    if child.returncode:
        reason = reason.removeprefix(ERROR).replace(OTHER_DISK, "give a --cache-dir on another one")
        raise UserError(f"{source.name} cannot be used: {reason}")


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
    from app.engine.machine.gpu import CUDA, cuda_state
    from app.engine.model.device import CPU
    from app.engine.model.load import VARIANTS

    on_gpu = settings.device != "cpu" and not cuda_state().problem
    return VARIANTS[CUDA if on_gpu or settings.device.startswith("cuda") else CPU][0]


def _digest(checkpoint: Path) -> str:
    """What changes when a file of the directory does."""
    files = sorted(file for file in checkpoint.iterdir() if file.is_file())
    facts = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
