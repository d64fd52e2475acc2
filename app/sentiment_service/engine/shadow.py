"""Tries a candidate beside the model that answers: texts that were answered also go to it.

Nothing waits for it. The candidate's process gets one text at a time, and only while no request is
classified; when one arrives meanwhile, the process is stopped until none is. Texts wait for that in
memory; when too many do, further ones are skipped. No text is kept or logged.

It is a process of its own because of its priority. The system gives it a CPU only while nothing
else wants one. A thread with this priority would hold Python's lock while it waits for a CPU, and
the event loop would wait with it. And if the memory runs out, the system ends this process first.
"""

import asyncio
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from sentiment_service.engine.loading import WARM_UP_TEXT, load_model
from sentiment_service.engine.model.bundle import MANIFEST, Bundle, sha256
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.model import Model, outcomes_of
from sentiment_service.engine.options import EngineConfig
from sentiment_service.errors import ServiceError, first_line
from sentiment_service.installation import child_command
from sentiment_service.results import Outcome

# Of a text that the candidate gets. A line with it fits into an empty socket, whatever its
# characters are, and to tokenise it takes a few milliseconds.
MOST_CHARS = 10_000
MOST_WAITING = 500  # texts
READ_BYTES = 65_536
SEND_BYTES = 2**17  # macOS has room for 8 KiB only
# The empty line says that it ends with the service now, also while it is stopped.
COMMAND = child_command(
    "import os; os.write(int(sys.argv[1]), b'\\n')\n"
    "from sentiment_service.engine.shadow import main"
)

Skipped = Literal["busy", "unsuited", "failed"]

logger = logging.getLogger(__name__)


class Loaded(Struct, frozen=True, tag=True):
    """The candidate can be asked."""

    name: str
    labels: list[str]


class Failed(Struct, frozen=True, tag=True):
    """The candidate cannot be loaded, or the text cannot be classified; ``reason`` says why."""

    reason: str


class Classified(Struct, frozen=True, tag=True):
    """A text's label and, of a model of sentiment, its polarity; and the time that this took."""

    label: str
    polarity: float | None
    seconds: float  # of the CPU; on a GPU, of the clock


Report = Loaded | Failed | Classified
REPORT = msgspec.json.Decoder(Report)


class ShadowObserver(Protocol):
    """Gets what comes of the texts that a candidate was meant to get, on the event loop."""

    def compared(
        self, label: str, candidate_label: str, difference: float | None, seconds: float
    ) -> None:
        """Model and candidate gave a text these labels, and polarities with this ``difference``.

        The candidate classified it in ``seconds``.
        """

    def skipped(self, reason: Skipped) -> None:
        """A text was not compared.

        ``busy``: too many wait; ``unsuited``: it is a pair, token ids, cut into windows or too
        long; ``failed``: the candidate gives it no label.
        """


class _Answered(NamedTuple):
    text: str
    label: str
    polarity: float | None


class Shadow:
    """The candidate at ``path`` beside ``model``. Use it on the event loop only.

    ``observer_of`` makes the observer for the candidate's digest.
    """

    def __init__(
        self,
        path: Path,
        model: Model,
        config: EngineConfig,
        observer_of: Callable[[str], ShadowObserver],
    ) -> None:
        self.failed = False  # the log says why
        self._ended = False  # nothing more is compared
        self.loaded: Loaded | None = None
        self.digest = sha256(path / MANIFEST)
        self.model = model
        self._share = config.shadow_share
        self._requests = 0  # that are classified now, of all models
        self._begun = False  # its process ends with this one, so it may be stopped
        self._stopped = False  # its process
        self._waiting: deque[_Answered] = deque()
        self._asked: _Answered | None = None  # what the candidate has
        self._received = b""  # of its next report
        self._loop = asyncio.get_running_loop()
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._channel.setblocking(False)
            self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            self._process = _started(theirs, path, self.digest, model, config)
        self._observer = observer_of(self.digest)
        self._loop.add_reader(self._channel, self._read)
        try:
            threading.Thread(target=self._await_end, name="candidate", daemon=True).start()
        except RuntimeError:  # there are too many threads, or too little memory
            self.close()
            self._process.wait()  # it was killed
            raise

    def begin(self) -> None:
        """A request is classified from now on: the candidate waits until none is."""
        self._requests += 1
        self._stand_still()

    def end(self) -> None:
        """A request that has begun is not classified any more."""
        self._requests -= 1
        self._go_on()

    def answered(self, model: Model, texts: Sequence[object], outcomes: Sequence[Outcome]) -> None:
        """The texts of a request got these outcomes. A share of them is compared later."""
        if self._ended or model is not self.model:
            return
        for text, outcome in zip(texts, outcomes, strict=True):
            if random.random() < self._share and not isinstance(outcome, ServiceError):
                if not isinstance(text, str) or "windows" in outcome or len(text) > MOST_CHARS:
                    self._observer.skipped("unsuited")
                elif len(self._waiting) == MOST_WAITING:
                    self._observer.skipped("busy")
                else:
                    answered = _Answered(text, outcome["label"], outcome.get("polarity"))
                    self._waiting.append(answered)
        self._go_on()

    def close(self) -> None:
        """End the candidate's process. Texts that wait are dropped."""
        if not self._ended:
            self._ended = True
            self._waiting.clear()
            self._process.kill()  # before its channel ends, which it would complain of in the log
            self._loop.remove_reader(self._channel)
            self._channel.close()

    def _go_on(self) -> None:
        """Let the candidate go on, or give it its next text, if no request is classified."""
        if self._requests or self._ended:
            return
        if self._stopped:
            self._signal(signal.SIGCONT)
        if self._waiting and self._asked is None and self.loaded is not None:
            self._asked = self._waiting.popleft()
            with suppress(OSError):  # the process has ended, which is noticed
                self._channel.send(msgspec.json.encode(self._asked.text) + b"\n")

    def _stand_still(self) -> None:
        works = self._begun if self.loaded is None else self._asked is not None
        if self._requests and works and not self._stopped:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        if not self._ended:
            self._stopped = number == signal.SIGSTOP
            self._process.send_signal(number)

    def _read(self) -> None:
        try:
            received = self._channel.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        self._received += received
        if not received:
            self._loop.remove_reader(self._channel)
        elif self._received == b"\n":
            self._begun = True
            self._stand_still()
        elif self._received.endswith(b"\n"):  # reports do not overlap: each answers a text
            report, self._received = REPORT.decode(self._received), b""
            self._take(report)

    def _take(self, report: Report) -> None:
        match report:
            case Loaded(name, labels) if {*labels} == {*self.model.labels}:
                self.loaded = report
                beside = self.model.name
                logger.info("%s (digest %s) is tried beside %s", name, self.digest[:12], beside)
            case Loaded(_, labels):
                self._fail(f"its labels are {', '.join(labels)}")
            case Failed(reason) if self._asked is None:
                self._fail(reason)
            case Failed():
                self._observer.skipped("failed")
            case Classified(label, polarity, seconds) if self._asked is not None:
                difference = None
                if polarity is not None and self._asked.polarity is not None:
                    difference = abs(polarity - self._asked.polarity)
                self._observer.compared(self._asked.label, label, difference, seconds)
        self._asked = None
        self._go_on()

    def _fail(self, reason: str) -> None:
        if not self._ended:
            self.failed = True
            self.loaded = None  # what has ended here would end the service, once it is promoted
            logger.error("no candidate is tried beside %s: %s", self.model.name, reason)
            if self._asked is not None:
                self._observer.skipped("failed")
            self.close()

    def _await_end(self) -> None:
        code = self._process.wait()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._note_end, code)

    def _note_end(self, code: int) -> None:
        if not self._ended:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            guess = "; out of memory?" if code == -signal.SIGKILL else ""
            self._fail(f"its process ended ({how}{guess})")


def _started(
    channel: socket.socket, path: Path, digest: str, model: Model, config: EngineConfig
) -> "subprocess.Popen[bytes]":
    options = {
        "device": str(model.device),
        "precision": config.precision,
        "gpu_memory_mb": config.gpu_memory_mb,
        "gpu_workers": config.gpu_workers,
    }
    return subprocess.Popen(  # noqa: S603 - this interpreter
        [*COMMAND, str(channel.fileno()), str(path), digest, json.dumps(options)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[channel.fileno()],
        process_group=0,  # so that Ctrl-C reaches the service alone
    )


# The process of the candidate: it classifies one text after another, after all other work.


def main() -> int:
    """Load a bundle that has the digest as the options say, then answer each text of the socket."""
    descriptor, path, digest, options = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as channel, channel.makefile("rwb") as lines:

        def send(report: Report) -> None:
            lines.write(msgspec.json.encode(report) + b"\n")
            lines.flush()

        _yield_to_all()
        try:
            model = _load(Path(path), digest, json.loads(options))
        except Exception as error:  # a wrong bundle, ONNX Runtime, too little memory
            send(Failed(first_line(error)))
            return 0
        send(Loaded(model.name, model.labels))
        for line in lines:
            send(_classify(model, msgspec.json.decode(line, type=str)))
    return 0


def _load(path: Path, digest: str, options: dict[str, Any]) -> Model:
    bundle = Bundle.open(path)
    if bundle.digest != digest:
        raise ValueError(f"{path} was changed while it was loaded")
    model = load_model(bundle, threads=1, **options)
    model.compute([model.tokenizer.encode(WARM_UP_TEXT)])
    return model


def _classify(model: Model, text: str) -> Report:
    clock = time.thread_time if model.provider == CPU else time.perf_counter
    started = clock()
    try:
        encoded = model.tokenizer.encode_texts([text])
        results = [] if isinstance(encoded[0], ServiceError) else model.compute(encoded[0].windows)
        (outcome,) = outcomes_of(model, encoded, results)
    except Exception as error:
        return Failed(first_line(error))
    if isinstance(outcome, ServiceError):
        return Failed(outcome.code)
    return Classified(outcome["label"], outcome.get("polarity"), clock() - started)


def _yield_to_all() -> None:
    """Be the last to get a CPU, and the first to go if the memory runs out."""
    with suppress(OSError):  # another system than Linux
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(OSError):  # a sandbox may forbid it
        os.nice(19)
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
