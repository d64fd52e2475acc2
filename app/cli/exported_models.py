"""Models that are no bundles yet: exported once, in a process of its own, and kept.

A bundle of a hub repository is downloaded in the same way. The process is ``sentiment-export``, so
PyTorch is never loaded into the service.
"""

import hashlib
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from app.atomic_files import FileLock
from app.config.settings import Settings, cache_directory
from app.engine.model.bundle import FORMAT_VERSION, MANIFEST, Precision
from app.errors import OTHER_DISK, UserError, system_error

HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?", re.ASCII)
# Every checkpoint has these. A damaged bundle has no weights of its own.
CONFIG, WEIGHTS = "config.json", (".safetensors", ".bin")
# The module's name cannot be that of another package, as that of model_export could.
# Linux kills it when this process ends, even by SIGKILL: option 1 of prctl is PR_SET_PDEATHSIG.
# The next export removes what a killed one leaves.
_EXPORT = """
import ctypes, signal, sys, sentiment_service
sys.platform == "linux" and ctypes.CDLL(None).prctl(1, signal.SIGKILL)
sys.exit(sentiment_service.export())
"""
COMMAND = (sys.executable, "-c", _EXPORT)
ERROR = "sentiment-export: "  # how that command begins the line that says why it failed
# The hub's client redraws its bars ten times a second. A line of the log tells it this seldom.
BAR = re.compile(r"\d%\|")
BAR_EVERY_S = 5.0
CLEANS_UP_S = 5.0
UP = "\x1b[A"  # which moves a terminal's cursor before the next bar
SHOW_BARS = {"TQDM_POSITION": "-1"}  # the hub's client: also where no terminal is

logger = logging.getLogger(__name__)

Say = Callable[[str], object]


def with_bundles(settings: Settings, say: Say = logger.info) -> Settings:
    """The settings with a bundle in the place of each checkpoint directory and hub id.

    What is not exported yet is exported now. ``say`` gets lines about the progress.

    Raises:
        UserError: a model does not exist, or cannot be exported.
    """
    bundles = tuple(_bundle(path, settings, say) for path in settings.model)
    return settings.model_copy(update={"model": bundles})


def _bundle(path: Path, settings: Settings, say: Say) -> Path:
    if path.exists() and ((path / MANIFEST).exists() or not _is_checkpoint(path)):
        return path  # a bundle, or nothing that can be exported
    source, revision, key, name = _source(path)
    directory = cache_directory(settings)
    if directory is None:
        raise UserError(f"{path} must be exported; give a directory for that with --cache-dir")
    precision = _precision(settings)
    bundle = directory / "models" / f"format-{FORMAT_VERSION}" / key / precision / name
    if not (bundle / MANIFEST).exists():
        command = [*COMMAND, source, "--output", str(bundle), "--precision", precision]
        if revision:
            command += ["--revision", revision]
        _export_once(command, bundle, str(path), say)
    logger.info("%s is kept in %s; delete that directory to export it again", path, bundle)
    return bundle


def _source(path: Path) -> tuple[str, str, str, str]:
    """Where a checkpoint is, its revision or "", its key in the cache, and its bundle's name.

    Raises:
        UserError: it is neither a directory nor a hub id.
    """
    if path.exists():
        path = path.resolve()
        return str(path), "", f"{path.name}-{_digest(path)}", path.name
    if hub_id := HUB_ID.fullmatch(str(path)):
        repository, revision = hub_id.groups(default="")
        return repository, revision, str(path).replace("/", "--"), repository.rpartition("/")[2]
    raise UserError(
        f"there is no directory {path}; give a bundle, a checkpoint directory, or a hub id, "
        "which has the form ORG/NAME"
    )


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


def _export_once(command: Sequence[str], bundle: Path, model: str, say: Say) -> None:
    """Run the command, unless another process does; then wait for its end.

    Raises:
        UserError: it failed, or the cache directory cannot be written.
    """
    try:
        bundle.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(bundle.with_name(".lock"), model, say)
    except OSError as error:
        raise UserError(
            f"{model} cannot be exported: {system_error(error)}; give another --cache-dir"
        ) from error
    with closing(lock):
        if not (bundle / MANIFEST).exists():
            say(f"exporting {model}; this is done once")
            _run(command, lock, model, say)


def _locked(path: Path, model: str, say: Say) -> FileLock:
    try:
        return FileLock(path)
    except BlockingIOError:
        say(f"another process is exporting {model}; waiting for it")
        return FileLock(path, wait=True)


def _run(command: Sequence[str], lock: FileLock, model: str, say: Say) -> None:
    """Run the command and tell what it writes. It holds the lock, even if this process is killed.

    Raises:
        UserError: it failed.
    """
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
