"""The process above the workers: start, failures, signals."""

import json
import os
import re
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import httpx2
import pytest
from sentiment_service.settings.credentials import Credentials
from sentiment_service.settings.settings import Settings
from sentiment_service.shared_memory import WorkerPhase
from sentiment_service.workers.supervisor import GroupReload, Supervisor
from sentiment_service.workers.worker_process import take_share, worker_count

from tests.conftest import FLAGS, Start
from tests.support.raw_http import BODY, HEAD, HEALTH, connect, post, read_answer
from tests.support.reloads import reload
from tests.support.serving import eventually, patched, run_program, runs


@pytest.mark.parametrize(
    ("cpus", "device", "workers"),
    [(2.0, "auto", 1), (8.0, "cpu", 1), (64.0, "cpu", 8), (16.0, "cuda:0,1", 4), (0.5, "cuda", 1)],
)
def test_auto_follows_the_cpus(cpus: float, device: str, workers: int) -> None:
    """One worker for every 8 CPUs, or for every 4 where a GPU computes; always one at least."""
    settings = Settings.model_validate({"workers": "auto", "device": device})
    assert worker_count(settings, cpus) == workers


def test_more_workers_than_cpus_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """They are started, because a container may get its CPUs later."""
    assert worker_count(Settings(workers=3), 2.0) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "3 workers share 2 CPUs: more workers than CPUs"
    ]


def test_gpus_are_dealt_out() -> None:
    """Each worker has its own of several, several if there are enough, and else shares one."""

    def dealt(gpus: str, workers: int) -> list[str]:
        settings = Settings(device=f"cuda:{gpus}")
        return [take_share(settings, number, workers)[0].device for number in range(workers)]

    assert dealt("0,1", 4) == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert dealt("0,1,2,3", 2) == ["cuda:0,2", "cuda:1,3"]


@pytest.mark.parametrize(
    ("number", "workers", "device", "cpus", "gpu_workers"),
    [
        (1, 2, "cuda:1", 4.0, 1),
        (2, 4, "cuda:0", 2.0, 2),
        (2, 3, "cuda:0", 8 / 3, 2),
        (1, 3, "cuda:1", 8 / 3, 1),
        (1, 3, "", 8 / 3, 3),
    ],
)
def test_a_share_is_cpus_and_gpus(
    number: int, workers: int, device: str, cpus: float, gpu_workers: int
) -> None:
    """CPUs are divided; a worker knows how many have its GPU, itself included."""
    settings = Settings(device="cuda:0,1" if device else "cpu")
    share = take_share(settings, number, workers, cpus=8.0)
    assert share == (Settings(device=device or "cpu", workers=workers), cpus, gpu_workers)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "from sentiment_service.errors import UserError; raise UserError('no such thing')",
            "no such thing",
        ),
        ("import os; os.kill(os.getpid(), 9)", "worker 1 was killed (SIGKILL; out of memory?)"),
    ],
)
def test_a_worker_that_cannot_start_ends_the_service(bundle: Path, fault: str, said: str) -> None:
    """The first start fails with exit code 1 and one line, and no worker is left."""
    command = patched(
        f"""
from sentiment_service.workers import worker_process
def take_share(settings, number, workers):
    if number == 1:
        {fault}
    return settings, 1.0, 1
worker_process.take_share = take_share
"""
    )
    flags = ["--port", "0", "--workers", "2", "--model", str(bundle), *FLAGS]
    done = run_program(*command, "serve", *flags)
    assert done.returncode == 1
    failures = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["message"] for line in failures if line["level"] == "critical"] == [said]
    assert "Traceback" not in done.stderr


# Worker 1 never becomes ready. From then on, the others have as long as they need no longer.
HANGING = """
import pathlib
from sentiment_service.workers import worker_process
import sentiment_service.workers.supervisor as supervisor
hanging = pathlib.Path({file!r})
check, take_share = supervisor.Supervisor._check, worker_process.take_share
def check_sooner(self, worker):
    supervisor.LOADING_S = 0.5 if hanging.exists() else 600.0
    check(self, worker)
def hang(settings, number, workers):
    if number == 1:
        hanging.touch()
        time.sleep(600)
    return take_share(settings, number, workers)
supervisor.Supervisor._check, worker_process.take_share = check_sooner, hang
"""


def test_a_worker_that_hangs_while_it_starts_is_killed(bundle: Path, tmp_path: Path) -> None:
    """At the first start, this ends the service with one line."""
    command = patched(HANGING.format(file=str(tmp_path / "hanging")))
    flags = ["--port", "0", "--workers", "2", "--model", str(bundle), *FLAGS]
    done = run_program(*command, "serve", *flags)
    assert done.returncode == 1
    assert "worker 1 was killed (it was not ready within 0.5 s)" in done.stderr


def test_while_no_worker_is_left_the_supervisor_answers(start: Start) -> None:
    """All are killed, twice: requests get 503 at once, and the pauses stay short."""
    process = start("--workers", "2", "--log-format", "human")
    for round_ in (1, 2):
        former = set(process.children())
        for worker in former:
            os.kill(worker, signal.SIGKILL)
        answer = httpx2.post(f"{process.url}/classify", json={"inputs": "love"})
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["retry-after"] == "1"
        document = answer.json()
        assert (document["code"], document["error"]) == ("not_ready", "no worker is ready")
        assert document["request_id"] == answer.headers["x-request-id"]
        with socket.create_connection(("127.0.0.1", process.port), 10) as tls:
            tls.sendall(b"\x16\x03\x01\x00\x05hello")
            # An answer in plain text would look to the client like a wrong version of TLS.
            assert tls.recv(1) == b""
        log = "".join(process.read_until("ready to serve") for _ in former)
        assert log.count("no worker is left: requests get 503 until one is ready") == 1
        # The supervisor may see the end a little late, or may not have seen that it was ready.
        pauses = re.findall(r"out of memory\?\); it is started again in [0-2]\.\d s", log)
        assert len(pauses) == 2, log
        assert httpx2.get(f"{process.url}/health/ready").status_code == 200
        eventually(partial(process.are_ready, without=former))
        assert round_ in {worker["restarts"] for worker in process.info()["workers"]}
    process.terminate()


# While the file exists, a worker ends as soon as it starts.
FAILING = """
import os
failing = os.path.exists({file!r}) and "_SENTIMENT_WORKER" in os.environ
failing and sys.exit(3)
import sentiment_service.workers.worker_process as worker_process
worker_process.LEAST_PAUSE_S = 0.05
"""


def test_workers_that_fail_at_every_start(start: Start, tmp_path: Path) -> None:
    """The pause before each start grows while others serve; if none can start, it exits with 1."""
    marker = tmp_path / "failing"
    command = patched(FAILING.format(file=str(marker)))
    process = start("--workers", "2", "--log-format", "human", command=command)
    marker.touch()
    first, second = process.children()
    os.kill(first, signal.SIGKILL)
    log = "".join(process.read_until("worker 0 ended with exit code 3") for _ in range(3))
    pauses = [float(pause) for pause in re.findall(r"code 3; it is started again in (.*) s", log)]
    assert pauses[-1] > pauses[0]
    assert log.count("worker 0 was killed (SIGKILL; out of memory?)") == 1
    assert httpx2.get(f"{process.url}/health/ready").status_code == 200
    os.kill(second, signal.SIGKILL)
    code, log = process.wait()
    assert code == 1
    assert "sentiment: no worker can start: worker " in log.splitlines()[-1]
    assert "Traceback" not in log


def test_a_worker_that_cannot_be_started_now_is_started_later(start: Start) -> None:
    """The supervisor has no file descriptor left for it: the other worker serves meanwhile."""
    process = start("--workers", "2")
    first, _ = process.children()
    opened = max(int(path.name) for path in Path(f"/proc/{process.pid}/fd").iterdir())
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (opened + 1, before[1]))
    os.kill(first, signal.SIGKILL)
    log = process.read_until("it is started again in 1.0 s")
    assert "worker 0 cannot be started: Too many open files" in log
    assert httpx2.get(f"{process.url}/health/ready").status_code == 200
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
    eventually(lambda: process.are_ready(without=[first]))
    process.terminate()


def test_a_worker_that_was_killed_before_does_not_make_the_end_a_failure(start: Start) -> None:
    """SIGTERM comes before it is started again: the exit code is that of the other worker, 0."""
    command = patched(
        "import sentiment_service.workers.worker_process as worker_process\n"
        "worker_process.LEAST_PAUSE_S = 60.0"
    )
    process = start("--workers", "2", command=command)
    os.kill(process.children()[0], signal.SIGKILL)
    process.read_until("it is started again in 60.0 s")
    process.terminate()


# A worker whose process id is in the file cannot recover, so its liveness fails.
HOPELESS = """
import os
import sentiment_service.workers.supervisor as supervisor
from sentiment_service.engine.model_registry import ModelRegistry
from sentiment_service.errors import NotReady
supervisor.HANGS_S = 5.0
def check_live(registry):
    with open({file!r}) as pids:
        if str(os.getpid()) in pids.read():
            raise NotReady("the GPU is lost")
ModelRegistry.check_live = check_live
"""


def test_workers_that_hang_or_cannot_recover_are_replaced(start: Start, tmp_path: Path) -> None:
    """One whose event loop stands still is killed; one whose liveness fails is ended."""
    pids = tmp_path / "pids"
    pids.touch()
    process = start("--workers", "2", command=patched(HOPELESS.format(file=str(pids))))
    hangs, hopeless = process.children()
    os.kill(hangs, signal.SIGSTOP)
    log = process.read_until("started again")
    assert "worker 0 was killed (it was silent for 5 s)" in log
    eventually(lambda: process.are_ready(without=[hangs]))
    pids.write_text(str(hopeless))
    assert "worker 1 cannot recover and is replaced" in process.read_until("started again")
    eventually(lambda: process.are_ready(without=[hangs, hopeless]))
    assert httpx2.get(f"{process.url}/health/live").status_code == 200


# The first text that a worker classifies while the file exists takes more memory than there is.
GREEDY = """
import os
from contextlib import suppress
from sentiment_service.engine.model.model import Model
infer = Model.infer
def greedy(model, encodings):
    with suppress(FileNotFoundError):
        os.unlink({file!r})
        bytearray(2**30)[::4096] = bytes([1]) * 2**18
    return infer(model, encodings)
Model.infer = greedy
"""


def test_a_worker_that_is_out_of_memory_is_replaced(
    start: Start, tmp_path: Path, memory_group: Path
) -> None:
    """The kernel kills it when the control group's memory is used up; the other one serves on."""
    marker = tmp_path / "greedy"
    inside = ["sh", "-c", f'echo $$ > {memory_group}/cgroup.procs; exec "$@"', "sh"]
    command = [*inside, *patched(GREEDY.format(file=str(marker)))]
    process = start("--workers", "2", command=command)
    workers = set(process.children())
    used, limit = _memory_files(memory_group)
    limit.write_text(str(int(used.read_text()) + 300 * 2**20))
    with connect(process.port, HEALTH) as one, connect(process.port, HEALTH) as other:
        assert [read_answer(connection)[0] for connection in (one, other)] == [200, 200]
        marker.touch()
        with suppress(httpx2.TransportError):  # it is on a connection of its worker
            httpx2.post(f"{process.url}/classify", json={"inputs": "love"})
        log = process.read_until("started again")
        assert "was killed (SIGKILL; out of memory?)" in log
        (kept,) = (connection for connection in (one, other) if not _is_closed(connection))
        kept.sendall(HEALTH)
        assert read_answer(kept)[0] == 200
    eventually(lambda: len(set(process.children()) - workers) == 1)
    eventually(lambda: process.are_ready(without=workers - set(process.children())))
    process.terminate()


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A new control group for memory; the test is skipped where none can be made."""
    first = Path("/sys/fs/cgroup/memory")
    group = (first if first.is_dir() else first.parent) / f"sentiment-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if not _memory_files(group)[1].exists():
            pytest.skip("the control groups of this machine do not limit memory")
        yield group
    finally:
        group.rmdir()


def _memory_files(group: Path) -> tuple[Path, Path]:
    """The used bytes and the limit, in version 2 or 1 of control groups."""
    second = (group / "memory.current", group / "memory.max")
    first = (group / "memory.usage_in_bytes", group / "memory.limit_in_bytes")
    return second if second[1].exists() else first


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(30)


def test_connections_that_no_worker_can_take_yet_are_not_lost_at_the_end(start: Start) -> None:
    """More of them wait than the channels to the workers hold; after SIGTERM, each is answered."""
    process = start("--workers", "2")
    workers = process.children()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    with ExitStack() as stack:
        waiting = [stack.enter_context(connect(process.port, post())) for _ in range(700)]
        process.signal(signal.SIGTERM)
        time.sleep(1.0)  # the supervisor hears nothing new and stops listening
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        assert {read_answer(connection)[0] for connection in waiting} == {503}
        assert process.wait()[0] == 0


def test_workers_end_when_the_supervisor_is_killed(start: Start) -> None:
    """They end as after SIGTERM: what has begun gets an answer, and none is left behind."""
    process = start("--workers", "2")
    workers = process.children()
    half = HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY)
    with connect(process.port, half) as begun:
        assert b"100 Continue" in begun.recv(1_000)
        process.signal(signal.SIGKILL)
        process._process.wait(30)
        begun.sendall(BODY)
        assert read_answer(begun)[0] == 503
    eventually(lambda: not any(map(runs, workers)))


# The first switch of each worker fails.
FAILING_SWITCH = """
from sentiment_service.engine.model_registry import ModelRegistry
use = ModelRegistry._use
async def fail(*_):
    ModelRegistry._use = use
    raise OSError("nothing expected")
ModelRegistry._use = fail
"""


def test_a_reload_that_fails_at_the_switch_is_answered(start: Start) -> None:
    """The client learns it, the log says why, and the next reload succeeds."""
    flags = ["--admin-keys", "admin-key-1", "--workers", "2"]
    process = start(*flags, command=patched(FAILING_SWITCH))
    answer = reload(process.client)
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    eventually(lambda: "nothing expected" in process.log)  # a worker logs through a thread
    assert reload(process.client).json()["status"] == "reloaded"


def test_models_that_still_differ_are_not_loaded_again() -> None:
    """Once for each set of models; if all had the same in between, that set is tried again."""

    class Reloads(GroupReload):
        count = 0

        def reload_all(self) -> None:
            self.count += 1

    workers = Supervisor(Settings(), Credentials.read(Settings()), 2, [])._workers
    reloads = Reloads(workers, mixed_s=-1.0)
    for worker in workers:
        worker.status.phase_number = WorkerPhase.READY
    expected = {(1, 2): 1, (2, 1): 1, (1, 3): 2, (3, 3): 2, (1, 1): 2, (3, 1): 3}
    for models, so_far in expected.items():
        for worker, model in zip(workers, models, strict=True):
            worker.status.models = model
        for _ in range(3):
            reloads.check_models()
        assert reloads.count == so_far, models
