"""SIGTERM while clients connect and leave: each request gets an answer, none gets a reset."""

import http.client
import json
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGHUP, SIGSTOP, SIGTERM

import pytest
from sentiment_service.server.arrivals import QUIET_S

from benchmarks.service import free_port
from tests.conftest import Start
from tests.support.raw_http import connect, read_answer
from tests.support.serving import COMMAND, SLOW_COMMAND, eventually, metric, patched
from tests.support.tiny_bundle import make_bundle

BODY = json.dumps({"inputs": ["love", "worst"]})
HEADERS = {"content-type": "application/json"}
CLIENTS = 32


class Client(threading.Thread):
    """Sends requests until no server listens, and remembers what became of each request.

    ``pause_s`` between two requests makes connections idle; without ``keep`` each request has its
    own connection. On a busy machine a client may be silent for longer than a stopping server waits
    for it; a connection that then is closed is no loss.
    """

    def __init__(self, port: int, *, keep: bool, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._keep = keep
        self._pause_s = pause_s
        self.seen: Counter[object] = Counter()

    def run(self) -> None:
        connection = self._connected()
        spoke = time.monotonic()
        while connection is not None:
            before, spoke = spoke, time.monotonic()
            try:
                connection.request("POST", "/classify", BODY, HEADERS)
                spoke = time.monotonic()
                answer = connection.getresponse()
                answer.read()
                self.seen[answer.status] += 1
                closes = answer.getheader("connection") == "close"
            except OSError as error:
                if spoke - before < QUIET_S:
                    self.seen[type(error).__name__] += 1
                closes = True
            if closes or not self._keep:
                connection.close()
                connection = self._connected()
            time.sleep(random.uniform(0, 2 * self._pause_s))

    def _connected(self) -> http.client.HTTPConnection | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.connect()
        except ConnectionRefusedError:
            return None
        return connection


@contextmanager
def clients(port: int, *, keep: bool, pause_s: float = 0.0) -> Iterator[Counter[object]]:
    """Clients at work; their records are complete when no server listens any more."""
    working = [Client(port, keep=keep, pause_s=pause_s) for _ in range(CLIENTS)]
    seen: Counter[object] = Counter()
    for client in working:
        client.start()
    eventually(lambda: all(client.seen for client in working))
    yield seen
    for client in working:
        client.join(30)
        seen += client.seen


@pytest.mark.parametrize(
    ("command", "keep", "pause_s", "signals"),
    [
        pytest.param(SLOW_COMMAND, False, 0.0, [SIGTERM] * 2, id="new connections, twice"),
        pytest.param(COMMAND, False, 0.0, [SIGTERM], id="new connections"),
        pytest.param(SLOW_COMMAND, True, 0.0, [SIGTERM], id="kept connections, slow"),
        pytest.param(COMMAND, True, 0.0, [SIGTERM], id="kept connections"),
        pytest.param(COMMAND, True, 0.1, [SIGTERM] * 2, id="kept and mostly idle, twice"),
        pytest.param(COMMAND, True, 0.0, [*[SIGHUP] * 20, SIGTERM], id="during a reload"),
    ],
)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_no_connection_is_reset(
    start: Start, command: list[str], keep: bool, pause_s: float, signals: list[int], workers: str
) -> None:
    """Begun requests are answered; later ones get 503 and the connection closes; exit code 0.

    SIGTERM mostly hits the slow service during a request. A reload ends with the process.
    """
    process = start("--drain-ms", "2000", "--workers", workers, command=command)
    with clients(process.port, keep=keep, pause_s=pause_s) as seen:
        for number in signals:
            process.signal(number)
            time.sleep(0.1 if number == SIGTERM else 0.01)
    process.terminate()
    assert set(seen) <= {200, 503}


def test_a_pause_of_the_process_loses_no_request(start: Start) -> None:
    """If it stands still while it stops, it reads what has arrived before it closes connections."""
    process = start("--drain-ms", "10000")
    with clients(process.port, keep=True, pause_s=0.2) as seen:
        process.signal(SIGTERM)
        for _ in range(3):
            time.sleep(0.12)
            process.signal(SIGSTOP)
            time.sleep(0.7)
            process.signal(SIGCONT)
    process.terminate()
    assert set(seen) <= {200, 503}


# The process stands still, until a file exists, when it is about to close what has been quiet.
STANDS_STILL = """
import os
from sentiment_service.server.http_protocol import HttpProtocol
close_if_quiet = HttpProtocol.close_if_quiet

def late(self, *times):
    if not os.path.exists(path):
        print("it stands still", file=sys.stderr, flush=True)
        while not os.path.exists(path):
            time.sleep(0.01)
    close_if_quiet(self, *times)

path = sys.argv.pop(1)
HttpProtocol.close_if_quiet = late
"""


def test_what_arrives_in_a_pause_is_read_before_the_connection_closes(
    start: Start, tmp_path: Path
) -> None:
    """A pause does not count as silence, although the process was past its last look at sockets."""
    goes_on = tmp_path / "goes-on"
    process = start("--drain-ms", "60000", command=patched(STANDS_STILL, str(goes_on)))
    with connect(process.port) as connection:
        process.signal(SIGTERM)
        process.read_until("it stands still")
        time.sleep(QUIET_S)
        connection.sendall(b"GET /info HTTP/1.1\r\nhost: x\r\n\r\n")
        goes_on.touch()
        assert read_answer(connection)[0] == 200


@pytest.mark.parametrize("workers", ["1", "2"])
def test_more_signals_change_nothing_until_the_very_end(start: Start, workers: str) -> None:
    """Also while Python's interpreter ends, when it has given signals their defaults back."""
    process = start("--workers", workers)
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            for number in (SIGTERM, SIGHUP):
                process.signal(number)
            time.sleep(0.002)

    repeating = threading.Thread(target=repeat, daemon=True)
    repeating.start()
    code, log = process.wait()
    ended.set()
    repeating.join()
    assert code == 0, log


def test_a_client_that_never_reads_cannot_hold_the_process(start: Start) -> None:
    """A client that never reads is abandoned when drain-ms ends."""
    process = start("--drain-ms", "1000")
    with connect(process.port, buffer_bytes=4_096) as client:
        client.settimeout(0.2)
        with suppress(TimeoutError):  # until no more is taken
            client.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 100_000)
        process.signal(SIGTERM)
        code, log = process.wait()
    assert code in (0, 1)
    assert "Traceback" not in log


def test_half_a_head_does_not_hold_the_process(start: Start) -> None:
    """A client that has sent a part of a head and then nothing gets 503, on either port."""
    metrics_port = free_port()
    process = start("--drain-ms", "600000", "--metrics-port", str(metrics_port))
    half = b"GET /metrics HTTP/1.1\r\nhost:"
    with connect(process.port, half) as first, connect(metrics_port, half) as second:
        process.terminate()
        for connection in (first, second):
            status, body = read_answer(connection)
            assert (status, json.loads(body)["code"]) == (503, "shutting_down")


# A reload stands still until a file exists.
RELOADS = """
import asyncio, os
from sentiment_service.engine.model_registry import ModelRegistry
reload = ModelRegistry.reload

async def late(self, *words, **options):
    print("a reload begins", file=sys.stderr, flush=True)
    while not os.path.exists(path):
        await asyncio.sleep(0.01)
    await reload(self, *words, **options)

path = sys.argv.pop(1)
ModelRegistry.reload = late
"""


def test_hangups_during_a_reload_are_one_more(start: Start, tmp_path: Path) -> None:
    """However many they are."""
    goes_on = tmp_path / "goes-on"
    process = start(command=patched(RELOADS, str(goes_on)))
    process.signal(SIGHUP)
    process.read_until("a reload begins")
    for _ in range(60):
        process.signal(SIGHUP)
        time.sleep(0.005)
    goes_on.touch()
    process.read_until("loaded again")
    process.read_until("loaded again")
    assert process.client.get("/health/ready").status_code == 200
    assert metric(process.client, "sentiment_http_requests_in_flight") == 1
    process.terminate()
    assert process.log.count("a reload begins") == 2


# SIGHUP arrives when the command is imported, and before and after the models are loaded.
HANGUPS = """
import os, signal

def hang_up():
    os.kill(os.getpid(), signal.SIGHUP)

class AtImport:
    def find_spec(self, name, path, target=None):
        if name == "sentiment_service.cli.command":
            hang_up()
            import sentiment_service.server.server as run
            create = run.main.create_app
            run.main.create_app = lambda *a, **k: (hang_up(), create(*a, **k), hang_up())[1]

sys.meta_path.insert(0, AtImport())
"""


def test_a_hangup_does_not_end_a_start(start: Start) -> None:
    """SIGHUP while the command is imported or the models are loaded does not end the process."""
    process = start(command=patched(HANGUPS), popen=subprocess.Popen)
    assert process.client.get("/health/ready").status_code == 200
    process.read_until("loaded again")


# The C library's destructors have run when this process is still there for a second. A thread that
# computes then crashes it.
LATE_EXIT = """
import ctypes
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.sleep, ctypes.c_void_p(1), None)
"""


@pytest.fixture(scope="module")
def slow_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose model takes ONNX Runtime a second to load."""
    return make_bundle(tmp_path_factory.mktemp("bundles") / "slow", additions=60_000)


@pytest.mark.parametrize("drain_ms", [20_000, 100])
def test_a_load_that_is_under_way_does_not_hold_or_crash_the_process(
    start: Start, slow_bundle: Path, drain_ms: int
) -> None:
    """SIGTERM during a reload drops the new model, whether or not it gets ready in time."""
    flags = ["--drain-ms", str(drain_ms)]
    process = start(*flags, bundle=slow_bundle, command=patched(LATE_EXIT), popen=subprocess.Popen)
    threads = Path(f"/proc/{process.pid}/task")
    before = len(list(threads.iterdir()))
    process.signal(SIGHUP)
    eventually(lambda: len(list(threads.iterdir())) > before)
    process.terminate()
