"""Runs ``sentiment-export`` in a process of its own: the service never loads PyTorch.

Of several processes that want the same bundle, one exports it.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from sentiment_service.atomic_files import FileLock
from sentiment_service.cli.children import child_command
from sentiment_service.errors import OTHER_DISK, UserError, system_error

COMMAND = child_command("from sentiment_export.cli import main")
ERROR = "sentiment-export: "  # how that command begins the line that says why it failed
# The hub's client redraws its bars ten times a second. A line of the log tells it this seldom.
BAR = re.compile(r"\d%\|")
BAR_EVERY_S = 5.0
CLEANS_UP_S = 5.0
UP = "\x1b[A"  # which moves a terminal's cursor before the next bar
SHOW_BARS = {"TQDM_POSITION": "-1"}  # the hub's client: also where no terminal is

Say = Callable[[str], object]


def export_once(
    words: Sequence[str], bundle: Path, model: str, needed: Callable[[], bool], say: Say
) -> None:
    """Run sentiment-export with these words, unless another process does; then wait for its end.

    It writes ``bundle``, and is not run if that is not ``needed`` any more. Errors name the
    ``model``.

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
        if needed():
            say(f"exporting {model}; this is done once")
            _run([*COMMAND, *words], lock, model, say)


def _locked(path: Path, model: str, say: Say) -> FileLock:
    try:
        return FileLock(path)
    except BlockingIOError:
        say(f"another process is exporting {model}; waiting for it")
        return FileLock(path, wait=True)


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
