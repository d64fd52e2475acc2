"""One worker as the supervisor sees it: its process, and the sockets that lead to it."""

import importlib.metadata
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Self

from pydantic import BaseModel

from sentiment_service.engine.host import available_cpus
from sentiment_service.errors import UserError, system_error
from sentiment_service.settings.settings import Settings, cache_directory
from sentiment_service.shared_memory import Board, WorkerPhase, WorkerStatus
from sentiment_service.workers.channels import Channel, Control, Message

logger = logging.getLogger(__name__)

VARIABLE = "_SENTIMENT_WORKER"
# What auto chooses: so many compute the embedded model as fast as one event loop can feed them.
CPUS_A_WORKER = 8
CPUS_A_GPU_WORKER = 4


class Assignment(BaseModel):
    """The number of a worker, its models, and the file descriptors that it inherits."""

    number: int  # from 0
    workers: int  # of the service
    board: int
    credentials: int  # a file in memory with those that are in force
    control: int  # a Unix socket for messages from and to the supervisor
    sites: list[int]  # a Unix socket for the connections of each port
    # Paths of bundles: a checkpoint may have changed since the supervisor exported it.
    model: tuple[Path, ...]
    served_name: tuple[str, ...]  # of the first models
    shadow: Path | None  # the candidate's bundle
    cache_dir: Path | None  # None: the usual one

    @classmethod
    def of_this_process(cls) -> Self | None:
        """What the supervisor has passed to this process; None if no supervisor has started it."""
        passed = os.environ.pop(VARIABLE, None)
        return cls.model_validate(json.loads(passed)) if passed else None

    def applied_to(self, settings: Settings) -> Settings:
        """The settings with what the supervisor has determined for all workers."""
        shared = {"model", "served_name", "shadow", "cache_dir"}
        return settings.model_copy(update=self.model_dump(include=shared))


def worker_count(settings: Settings, cpus: float | None = None) -> int:
    """The number of worker processes that these settings mean with so many CPUs, or all."""
    linux, cpus = sys.platform == "linux", cpus or available_cpus()
    if settings.workers == "auto":
        each = CPUS_A_GPU_WORKER if _computes_on_gpu(settings.device) else CPUS_A_WORKER
        return max(1, int(cpus) // each) if linux else 1
    if settings.workers > 1 and not linux:
        raise UserError("--workers: more than one worker needs Linux")
    if settings.workers > max(1.0, cpus):
        logger.warning("%d workers share %g CPUs: more workers than CPUs", settings.workers, cpus)
    return settings.workers


def _computes_on_gpu(device: str) -> bool:
    """Whether ``--device`` means a GPU. The supervisor does not load CUDA to find out."""
    if device != "auto":
        return device != "cpu"
    try:
        importlib.metadata.distribution("onnxruntime-gpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return Path("/dev/nvidiactl").exists()


def with_shared_cache(settings: Settings, stack: ExitStack) -> Settings:
    """The settings with another directory for caches if the usual one cannot be written.

    Otherwise each worker would measure while others serve. That directory ends with the ``stack``.
    """
    usual = cache_directory(settings)
    with suppress(OSError):
        if usual is not None:
            usual.mkdir(parents=True, exist_ok=True)
            if os.access(usual, os.W_OK):
                return settings
    with suppress(OSError):  # no directory at all can be written
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="sentiment-"))
        return settings.model_copy(update={"cache_dir": Path(made)})
    return settings


def take_share(
    settings: Settings, number: int, workers: int, *, cpus: float | None = None
) -> tuple[Settings, float, int]:
    """The share of worker ``number``: settings with its GPUs, its CPUs, and the workers of its GPU.

    The last two are numbers.
    """
    kind, _, numbers = settings.device.partition(":")
    gpus = numbers.split(",")  # one without a number for `cuda` and `auto`
    if numbers:
        # Several if there are enough for all, else one that is shared.
        own = ",".join(gpus[number::workers] or [gpus[number % len(gpus)]])
        settings = settings.model_copy(update={"device": f"{kind}:{own}"})
    gpu_workers = len(range(number % len(gpus), workers, len(gpus)))
    cpus = (cpus or available_cpus()) / workers
    return settings.model_copy(update={"workers": workers}), cpus, gpu_workers


# The pause before a worker is started again. It doubles until the worker is ready for STEADY_S.
LEAST_PAUSE_S = 0.5
MOST_PAUSE_S = 30.0
STEADY_S = 60.0
# A worker that was silent for longer gets no connections, and those that it has not taken are taken
# back, ...
SILENT_S = 2.0
# ... and after this time it is killed.
HANGS_S = 30.0
# The most that a worker may take to load its models, when it starts and for a reload.
LOADING_S = 600.0
# The most that one ``look`` counts: if the supervisor itself was stopped, no worker is to blame.
MOST_ELAPSED_S = 0.5


class WorkerProcess:
    """Worker ``number`` of a service with ``sites`` ports. It has a process after ``start``.

    The process reads its settings as this one did, but bundles and cache are those of ``settings``.
    ``credentials`` gives the descriptor of those in force.
    """

    def __init__(
        self,
        number: int,
        board: Board,
        board_descriptor: int,
        credentials: Callable[[], int],
        sites: int,
        settings: Settings,
        on_message: Callable[["WorkerProcess", Message], None],
        on_end: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number = number
        self.status = WorkerStatus(board, number)
        self.status.end()
        self.exit_code: int | None = None  # of the latest process, when it has ended
        self.failed = False  # its latest process ended before it was ready
        self.fault = ""  # what it did, if its process must be replaced
        # On the clock time.monotonic: when its process was started, or is to be started again, ...
        self.started_at = self.start_at = 0.0
        self.end_by = math.inf  # ... and when the process must have ended, once it should
        self.silent_s = 0.0
        self._board = board
        self._board_descriptor = board_descriptor
        self._credentials = credentials
        self._sites = sites
        self._settings = settings
        self._on_message = on_message
        self._on_end = on_end
        self._clock = clock
        self._kill_reason = ""
        self._control: Control | None = None  # while it has a process
        self._channels: list[Channel] = []  # while it has a process
        self._takes_connections = False
        self._returned: list[tuple[int, socket.socket]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._pause_s = LEAST_PAUSE_S
        self._ready_at = math.inf  # when it was first seen to be ready
        self._beats = 0
        self._looked_at = 0.0

    @property
    def alive(self) -> bool:
        return self._process is not None

    @property
    def phase(self) -> WorkerPhase:
        return self.status.phase

    @property
    def reachable(self) -> bool:
        return self._takes_connections and self.phase is not WorkerPhase.STARTING

    @property
    def silent(self) -> bool:
        return self.silent_s > SILENT_S

    @property
    def rank(self) -> tuple[bool, int]:
        """Workers that answer come first, then those that are ready."""
        return self.silent, self.phase

    def start(self) -> None:
        """Start a process: the command of this process once more."""
        with ExitStack() as opened:
            try:
                own_control, control = map(
                    opened.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                )
                channels = [opened.enter_context(closing(Channel())) for _ in range(self._sites)]
                self._process = self._spawn(control, channels)
            except OSError as error:
                self._put_off(self._clock())
                raise UserError(
                    f"worker {self.number} cannot be started: {system_error(error)}"
                ) from error
            opened.pop_all()
        control.close()
        self._channels = channels
        self._control = Control(
            own_control, lambda message, _: self._on_message(self, message), self._on_end
        )
        self.status.begin(self._process.pid)
        self._takes_connections = True
        self.exit_code, self.end_by, self.silent_s = None, math.inf, 0.0
        self.started_at, self._kill_reason, self.fault = self._clock(), "", ""

    def give(self, site: int, connection: socket.socket) -> bool:
        """Hand a connection of this port over; False if the worker cannot take it now."""
        if not self._takes_connections or not self._channels[site].give(connection):
            return False
        self.status.dealt += 1
        return True

    def returned(self) -> list[tuple[int, socket.socket]]:
        """The connections, with their ports, that it was dealt and has not taken; each once."""
        returned, self._returned = self._returned, []
        return returned

    def send(self, message: Message, *descriptors: int) -> bool:
        """Send a message to the process; False if there is one and it does not get it."""
        return self._control is None or self._control.send(message, *descriptors)

    def look(self) -> None:
        """Check whether the process has ended, is ready, or is silent."""
        now = self._clock()
        if self._process is not None and (code := self._process.poll()) is not None:
            self._ended(code, now)
        elif self.phase is WorkerPhase.READY:
            self._ready_at = min(self._ready_at, now)
        if self.status.beats != self._beats or self.phase is WorkerPhase.STARTING:
            self._beats, self.silent_s = self.status.beats, 0.0
        else:
            self.silent_s += min(now - self._looked_at, MOST_ELAPSED_S)
        self._looked_at = now
        self.status.silent = self.silent
        if self.silent:
            self._take_back()

    def end(self, by: float) -> None:
        """Have the process finish its requests and end ``by`` a time of ``time.monotonic``."""
        # Only once: in the last moment of a process, a signal would kill it.
        if self._process is not None and self.end_by == math.inf:
            self._process.send_signal(signal.SIGTERM)
        self.end_by = min(self.end_by, by)

    def kill(self, reason: str) -> None:
        if self._process is not None and not self._kill_reason:
            self._kill_reason = reason
            self._process.kill()

    def promote(self, name: str, *, loads: bool) -> None:
        """From the next start on, the candidate is the first model, under that one's ``name``.

        A process that still ``loads`` the former one is replaced.
        """
        settings = self._settings
        if settings.shadow is not None:
            models = (settings.shadow, *settings.model[1:])
            names = (name, *settings.served_name[1:])
            changes = {"model": models, "served_name": names, "shadow": None}
            self._settings = settings.model_copy(update=changes)
        if loads and self.alive:
            self.fault = "was started with the model before the promotion"

    @property
    def was_killed(self) -> bool:
        """Whether a signal has ended the latest process, and not the process itself."""
        return self.exit_code is not None and self.exit_code < 0

    @property
    def last_end(self) -> str:
        if self.exit_code is None or self.exit_code >= 0:
            return f"worker {self.number} ended with exit code {self.exit_code}"
        name = signal.Signals(-self.exit_code).name
        guess = "; out of memory?" if name == "SIGKILL" else ""
        return f"worker {self.number} was killed ({self._kill_reason or name + guess})"

    def end_connections(self) -> None:
        """Deal the worker no more connections. Those that it was dealt, it still takes."""
        for channel in self._channels:
            channel.end()
        self._takes_connections = False

    def _spawn(
        self, control: socket.socket, channels: Sequence[Channel]
    ) -> "subprocess.Popen[bytes]":
        settings = self._settings
        assignment = Assignment(
            number=self.number,
            workers=self._board.workers,
            board=self._board_descriptor,
            credentials=self._credentials(),
            control=control.fileno(),
            sites=[channel.worker_end.fileno() for channel in channels],
            model=tuple(path.absolute() for path in settings.model),
            served_name=settings.served_name,
            shadow=settings.shadow and settings.shadow.absolute(),
            cache_dir=settings.cache_dir and settings.cache_dir.absolute(),
        )
        return subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, *sys.orig_argv[1:]],
            pass_fds=[
                *(assignment.board, assignment.credentials, assignment.control),
                *assignment.sites,
            ],
            # Not pydantic's own JSON, which refuses a path that is not UTF-8.
            env={**os.environ, VARIABLE: json.dumps(assignment.model_dump(mode="json"))},
            process_group=0,  # so that Ctrl-C reaches the supervisor alone
        )

    def _ended(self, code: int, now: float) -> None:
        self._put_off(now)
        self._ready_at, self._process, self.exit_code = math.inf, None, code
        self._take_back()
        for channel in self._channels:
            channel.close()
        self._channels, self._takes_connections = [], False
        if self._control is not None:
            self._control.close()
        self._control = None
        self.status.end()
        self._board.clear_present(self.number)

    def _take_back(self) -> None:
        for site, channel in enumerate(self._channels):
            connections = channel.take_back()
            self.status.dealt -= len(connections)
            self._returned += [(site, connection) for connection in connections]

    def _put_off(self, now: float) -> None:
        self.failed = self._ready_at == math.inf
        if now >= self._ready_at + STEADY_S:
            self._pause_s = LEAST_PAUSE_S
        self.start_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
