"""The process of a candidate: it classifies one text after another, after all other work.

It is a process of its own because of its priority. The system gives it a CPU only while nothing
else wants one. A thread with this priority would hold Python's lock while it waits for a CPU, and
the event loop would wait with it. And if the memory runs out, the system ends this process first.
"""

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from sentiment_service.engine.host import NICE
from sentiment_service.engine.loading import WARM_UP_TEXT, load_model
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.model import Model, outcomes_of
from sentiment_service.errors import ServiceError, first_line
from sentiment_service.installation import child_command

# The empty line says that it ends with the service now, also while it is stopped.
COMMAND = child_command(
    "import os; os.write(int(sys.argv[1]), b'\\n')\n"
    "from sentiment_service.engine.candidate import main"
)


class Job(Struct, frozen=True):
    """What the process is to load, and the digest that it must have; the names are settings'."""

    path: str
    digest: str
    device: str
    precision: str
    gpu_memory_mb: int
    gpu_workers: int


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


def main() -> int:
    """Load what the second argument says, then answer each text of the socket in the first."""
    descriptor, job = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as channel, channel.makefile("rwb") as lines:

        def send(report: Report) -> None:
            lines.write(msgspec.json.encode(report) + b"\n")
            lines.flush()

        _yield_to_runners()
        try:
            model = _load(msgspec.json.decode(job, type=Job))
        except Exception as error:  # a wrong bundle, ONNX Runtime, too little memory
            send(Failed(first_line(error)))
            return 0
        _yield_to_all()
        send(Loaded(model.name, model.labels))
        for line in lines:
            send(_classify(model, msgspec.json.decode(line, type=str)))
    return 0


def _load(job: Job) -> Model:
    bundle = Bundle.open(Path(job.path))
    if bundle.digest != job.digest:
        raise ValueError(f"{bundle.path} was changed while it was loaded")
    precision: Any = job.precision
    model = load_model(
        bundle,
        device=job.device,
        precision=precision,
        threads=1,
        gpu_memory_mb=job.gpu_memory_mb,
        gpu_workers=job.gpu_workers,
    )
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


def _yield_to_runners() -> None:
    """Be the first to go if the memory runs out, and take no more CPU than a runner."""
    with suppress(OSError):  # another system than Linux
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(OSError):  # a sandbox may forbid it
        os.nice(NICE)


def _yield_to_all() -> None:
    with suppress(OSError):
        os.nice(19)
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
