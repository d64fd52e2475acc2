"""gRPC clients that break the rules end, hold up and fill nothing but their own calls."""

import asyncio
import ctypes
import gc
import signal
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from grpc._cython import cygrpc
from sentiment_service.adapters.grpc.call import Call, CallLimits, ServingTask
from sentiment_service.adapters.grpc.door import STREAMS
from sentiment_service.adapters.grpc.messages import METHODS, more_fields
from sentiment_service.adapters.grpc.methods import HANDLERS, _document
from sentiment_service.adapters.grpc.server import (
    AT_ONCE,
    LEAST_CONNECTIONS,
    UNKNOWN,
    AioServer,
    _options,
    rpc_handler,
)
from sentiment_service.errors import ClientDisconnected, TooManyTexts
from sentiment_service.requests.limits import Paths
from sentiment_service.requests.service import Service
from sentiment_service.settings.settings import Settings

from benchmarks.service import free_port
from checks.support.http2 import (
    INFER,
    LIVE,
    NOT_TEXT,
    REFLECT,
    WATCH,
    Connection,
    hold_back,
    message,
    reset_calls,
    status_of,
)
from tests.adapters.grpc_api.conftest import serving
from tests.support.serving import Process, eventually, metric

MB = 1 << 20
KEY = b"Bearer the-key-of-the-tests"
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1]}


def asked(request_id: str = "") -> bytes:
    """A message of INFER; the answer has the same id."""
    tensor = {**TENSOR, "contents": {"bytes_contents": [b"good"]}}
    request = METHODS[INFER.decode()].request(model_name="tiny", id=request_id, inputs=[tensor])
    return bytes(request.SerializeToString())


ASKED = asked()

# A question of REFLECT: list_services.
ASKED_SERVICES = b"\x3a\x01*"


def predicted(port: int) -> bool:
    """Whether an ordinary client gets an answer."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary(INFER.decode())
        return bool(method(ASKED, timeout=20, wait_for_ready=True))


@pytest.fixture(scope="module")
def served(bundle: Path) -> Iterator[tuple[Process, int]]:
    """One service, and its port for gRPC. Messages may have 2 MB, and 16 MB together."""
    with serving(bundle, "--max-inflight-bytes", str(16 * MB)) as served:
        yield served


def test_a_path_that_is_no_text_ends_only_its_call(served: tuple[Process, int]) -> None:
    """It is an unknown method; a call of another client that is in progress goes on."""
    process, port = served
    with Connection(port) as other, Connection(port) as hostile:
        watch = other.begin(WATCH)
        other.send(watch, message(b""), end=True)
        assert status_of(hostile, hostile.begin(NOT_TEXT)) == grpc.StatusCode.UNIMPLEMENTED.value[0]
        assert predicted(port)
        frame = other.read()
        while frame is not None and frame.content != message(b"\x08\x01"):  # SERVING
            assert not other.ended(frame, watch)
            frame = other.read()
        assert frame is not None
    assert process.client.get("/health/live").status_code == 200


# Without the guard against such paths, they end the server as they do in grpc.aio.
UNGUARDED = """
import asyncio, sys
from sentiment_service.cli.command import main
from sentiment_service.adapters.grpc.server import AioServer
from grpc._cython import cygrpc
guarded = AioServer._make_request_call_future
def unguarded(self, method):
    if method is None:
        return asyncio.shield(cygrpc.AioServer._make_request_call_future(self, None))
    return guarded(self, None if self._takes.get(method, method) is None else method)
AioServer._make_request_call_future = unguarded
sys.exit(main())
"""


def test_liveness_fails_if_the_server_has_ended(bundle: Path) -> None:
    """Whatever ends it is logged, and probes say so: an orchestrator restarts the process."""
    with serving(bundle, command=[sys.executable, "-c", UNGUARDED]) as (process, port):
        with Connection(port) as hostile:
            hostile.begin(NOT_TEXT)
            process.read_until("gRPC ended with UnicodeDecodeError")
        for probe in ("/health/live", "/health/ready"):
            eventually(lambda path=probe: process.client.get(path).status_code == 503)  # type: ignore[misc]
        process.signal(signal.SIGTERM)
        assert process.wait()[0] == 0


def test_messages_that_are_held_back_take_little_memory(served: tuple[Process, int]) -> None:
    """50 clients that hold back the last byte of 2 MB take a few of these together.

    The calls that hold theirs back for the longest are refused, and others are answered.
    """
    process, port = served
    assert predicted(port)
    rest = process.memory_bytes()
    connections = [Connection(port) for _ in range(50)]
    held = [(connection, hold_back(connection, 2_000_000)) for connection in connections]
    assert predicted(port)
    assert process.memory_bytes() - rest < 64 * MB
    codes = [status_of(connection, stream) for connection, stream in held[:40]]
    assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}
    for connection in connections:
        connection.socket.close()


def test_answers_that_are_not_taken_hold_up_nobody(bundle: Path) -> None:
    """Of 500 calls whose clients give no room for an answer, the oldest are ended.

    They hold neither the places of other calls nor the bytes of other requests.
    """
    limits = ["--max-body-bytes", "100000", "--max-inflight-bytes", str(16 * MB)]
    with serving(bundle, *limits) as (process, port), ExitStack() as connections:
        for _ in range(4):
            hostile = connections.enter_context(Connection(port, window=0))
            calls = [(LIVE, b""), (WATCH, b""), (REFLECT, ASKED_SERVICES)] * 35
            calls += [(INFER, asked("a" * 60_000))] * 20
            for path, content in calls:
                hostile.send(hostile.begin(path), message(content), end=True)
            assert predicted(port)
            body = {"inputs": "good " * 9_000}
            assert process.client.post("/classify", json=body).status_code == 200
        for path in (LIVE, INFER):
            labels = {"route": path.decode(), "method": "GRPC", "status": "499"}
            assert metric(process.client, "sentiment_http_requests_total", **labels) > 10


@asynccontextmanager
async def started(
    handlers: dict[str, Any], options: Any = (), **more: Any
) -> AsyncIterator[tuple[int, AioServer]]:
    """A server of these methods in this process, and its port."""
    port, server = free_port(), AioServer(list(options), handlers, crashed=print, **more)
    server.add_insecure_port(f"127.0.0.1:{port}".encode())
    await server.start()
    try:
        yield port, server
    finally:
        await server.shutdown(None)


def answered_by(answer: Any) -> dict[str, Any]:
    """The handlers of a server that answers all calls so."""
    return dict.fromkeys((INFER.decode(), UNKNOWN), grpc.stream_stream_rpc_method_handler(answer))


def limited_by(limits: CallLimits) -> dict[str, Any]:
    """The service's own handlers, with these limits."""
    paths = (LIVE.decode(), INFER.decode(), UNKNOWN)
    return {path: rpc_handler(limits, path, HANDLERS.get(path)) for path in paths}


async def test_a_call_whose_client_takes_nothing_ends_in_time() -> None:
    """No other client must come for that."""
    service = Service(Settings(), Paths())
    limits = CallLimits(service, lambda task: server.drop(task), untaken_s=0.2)
    async with started(limited_by(limits)) as (port, server):
        with Connection(port, window=0) as hostile, Connection(port) as other:
            stream = hostile.begin(LIVE)
            hostile.send(stream, message(b""), end=True)
            ended = asyncio.create_task(asyncio.to_thread(status_of, hostile, stream))
            while not ended.done():  # grpc.aio refers to a call until another one comes
                other.send(other.begin(LIVE), message(b""), end=True)
                await asyncio.wait([ended], timeout=0.1)
    assert ended.result() == grpc.StatusCode.CANCELLED.value[0]


def test_only_a_message_with_texts_may_be_long(served: tuple[Process, int]) -> None:
    """Other methods take 4 kB, because what they get may stay in memory as long as their calls."""
    _, port = served
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for path in (path for path in METHODS if path != INFER.decode()):
            method = channel.stream_stream(path)
            with pytest.raises(grpc.RpcError, match="at most 4096") as refused:
                list(method(iter([b"\x0a\x88\x27" + b"a" * 5_000]), timeout=20))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@contextmanager
def little_memory() -> Iterator[None]:
    """Fails if Python takes more than 2 MB meanwhile."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_what_one_field_holds_is_counted_before_anything_is_made_of_it() -> None:
    """Numbers of a shape and empty raw texts may be many; more than are accepted cost nothing."""
    request = METHODS[INFER.decode()].request
    tensor = {**TENSOR, "shape": [1] * 300_000}
    with little_memory():
        assert _document(request(inputs=[tensor]), 1_000)["inputs"][0]["shape"] == [1, 1, 1]
    raw = request(inputs=[TENSOR], raw_input_contents=[bytes(1_200_000)])
    with little_memory(), pytest.raises(TooManyTexts):
        _document(raw, 1_000)


def test_the_log_has_only_our_lines_and_nothing_of_what_clients_send(bundle: Path) -> None:
    """Neither gRPC's C library nor its Python part writes of metadata that is no text."""
    with serving(bundle, "--log-format", "json") as (process, port):
        for metadata in (
            (b"authorization", KEY + b"\xff"),
            (b"some-bin", b"!!"),
            (b"UPPER", b"x"),
            (b"grpc-timeout", b"soon"),
            (b"grpc-encoding", b"none-such"),
        ):
            with Connection(port) as hostile:
                stream = hostile.begin(INFER, [metadata])
                hostile.send(stream, message(b""), end=True)
                status_of(hostile, stream)
        with Connection(port) as hostile:
            hostile.socket.sendall(b"\xff" * 100)
            while hostile.read():
                pass
        process.signal(signal.SIGTERM)
        code, log = process.wait()
    assert code == 0
    assert all(line.startswith('{"time"') for line in log.splitlines())
    assert "the-key-of" not in log
    assert "exception" not in log


def test_calls_that_watch_are_limited(bundle: Path) -> None:
    """They need no key, so they cannot take the places of all calls; and each is told the end."""
    # Room for 16 calls, of which 4 may watch.
    small = ["--max-body-bytes", "1000", "--max-inflight-bytes", "20000"]
    with serving(bundle, *small) as (process, port), Connection(port) as client:
        for stream in [client.begin(WATCH) for _ in range(4)]:
            client.send(stream, message(b""), end=True)
        begun = 0
        while begun < 4 and (frame := client.read()):
            begun += frame.content == message(b"\x08\x01")  # SERVING
        refused = client.begin(WATCH)
        client.send(refused, message(b""), end=True)
        assert status_of(client, refused) == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert predicted(port)
        process.signal(signal.SIGTERM)
        told = 0
        while frame := client.read():
            told += frame.content == message(b"\x08\x02")  # NOT_SERVING
        assert told == 4
        assert process.wait()[0] == 0


def test_a_client_that_ignores_the_end_does_not_hold_it_up(bundle: Path) -> None:
    """Nor does one that holds back a message: it is told, long before --drain-ms."""
    long = ["--drain-ms", "600000", "--deadline-ms", "600000"]
    with (
        serving(bundle, *long) as (process, port),
        Connection(port, polite=False) as idle,
        Connection(port) as holding,
    ):
        assert idle.read()
        stream = hold_back(holding, 100_000)
        process.signal(signal.SIGTERM)
        assert process.wait()[0] == 0
        assert status_of(holding, stream) == grpc.StatusCode.UNAVAILABLE.value[0]


def test_clients_that_go_on_calling_are_told_of_the_end(bundle: Path) -> None:
    """Each call is answered, or its status is UNAVAILABLE; nothing holds or breaks the end.

    gRPC itself cancels a call that comes at the very moment in which the connections close.
    """
    seen: Counter[grpc.StatusCode] = Counter()
    begun = threading.Semaphore(0)

    def calls(port: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            call = channel.unary_unary(INFER.decode())
            while True:
                try:
                    call(ASKED, timeout=20)
                    seen[grpc.StatusCode.OK] += 1
                    begun.release()
                except grpc.RpcError as error:
                    seen[error.code()] += 1
                    if "failed to connect" in error.details():
                        return

    with serving(bundle) as (process, port):
        clients = [threading.Thread(target=calls, args=(port,), daemon=True) for _ in range(16)]
        for client in clients:
            client.start()
        for _ in range(64):
            assert begun.acquire(timeout=20)
        process.signal(signal.SIGTERM)
        code, log = process.wait()
        for client in clients:
            client.join(30)  # another server may have the port by now
    assert code == 0
    assert "Traceback" not in log
    assert seen.pop(grpc.StatusCode.CANCELLED, 0) <= len(clients)
    assert seen.keys() == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}


class Counting:
    """Answers calls with nothing, and counts those that have begun."""

    begun = 0

    async def answer(self, requests: object, context: object) -> None:
        self.begun += 1


async def test_calls_of_a_busy_method_are_taken_together() -> None:
    """However long the turns of the event loop are, calls do not wait for one turn after another.

    gRPC cancels calls that wait for too long.
    """
    calls, turns = Counting(), 0
    async with started(answered_by(calls.answer), busy=[INFER.decode()]) as (port, _):
        with Connection(port) as client:
            for _ in range(32):
                client.begin(INFER)
            while calls.begun < 32:
                # A long turn, in which gRPC's threads do all that they can.
                time.sleep(0.02)  # noqa: ASYNC251
                await asyncio.sleep(0)
                turns += 1
    assert turns < 64


async def test_calls_that_are_reset_do_not_end_those_of_others() -> None:
    """Of 12,000 that come and are reset in one turn of the event loop, few wait to be taken.

    gRPC cancels calls of any client when too many wait.
    """
    taken, options = Counting(), _options(Service(Settings(), Paths()))
    async with started(answered_by(taken.answer), options) as (port, _):
        with ExitStack() as connections:
            for _ in range(12):
                hostile = connections.enter_context(Connection(port))
                for _ in range(1_000):
                    hostile.reset(hostile.begin(INFER))
                hostile.ping()
            others = [connections.enter_context(Connection(port)) for _ in range(20)]
            calls = [(other, other.begin(INFER)) for other in others]
            statuses = [await asyncio.to_thread(status_of, *call) for call in calls]
    assert statuses == [grpc.StatusCode.OK.value[0]] * 20
    assert taken.begun <= 12 * (STREAMS + 1) + AT_ONCE + 20


async def test_it_is_known_when_all_calls_have_been_taken() -> None:
    """Of each method, and of none: each call that the library had read before has begun then."""
    calls = Counting()
    async with started(answered_by(calls.answer)) as (port, server):
        with Connection(port) as client:
            for _ in range(200):
                client.begin(INFER)
                client.reset(client.begin(NOT_TEXT))
            client.ping()
            before = calls.begun
            await server.all_taken()
            for _ in range(5):  # grpc.aio makes two tasks of a call
                await asyncio.sleep(0)
            assert (before, calls.begun) == (0, 400)


def reconnect(port: int, until: float) -> None:
    """Open calls and reset them, on ever new connections."""
    flood = reset_calls(range(1, 2 * STREAMS, 2))
    while time.monotonic() < until:
        with suppress(OSError), Connection(port) as hostile:
            hostile.socket.sendall(flood)
            hostile.ping()


def reset_on(connections: int) -> Callable[[int, float], None]:
    """What opens calls and resets them on so many connections, again and again."""

    def reset(port: int, until: float) -> None:
        with ExitStack() as stack:
            hostile = [stack.enter_context(Connection(port)) for _ in range(connections)]
            for first in count(1, 2 * STREAMS):
                flood = reset_calls(range(first, first + 2 * STREAMS, 2))
                for one in hostile:
                    if time.monotonic() > until:
                        return
                    with suppress(OSError):
                        one.socket.settimeout(0.1)
                        one.socket.sendall(flood)

    return reset


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, gRPC listens itself")
def test_connections_are_limited(bundle: Path) -> None:
    """One too many is closed at once; it gets a place when another one has left."""
    small = ["--max-body-bytes", "1000", "--max-inflight-bytes", "20000"]
    with serving(bundle, *small) as (_, port), ExitStack() as stack:
        connections = [stack.enter_context(Connection(port)) for _ in range(LEAST_CONNECTIONS)]
        for one in connections:
            assert one.read()
        with Connection(port) as refused:
            assert refused.read() is None
        connections[0].socket.close()
        assert predicted(port)


def take_nothing(port: int, until: float) -> None:
    """Send settings, each of which must be acknowledged, on ever new connections."""
    while time.monotonic() < until:
        with suppress(OSError), Connection(port, timeout_s=0.5) as hostile:
            while time.monotonic() < until:
                hostile.socket.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]) * 7_000)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, gRPC listens itself")
@pytest.mark.parametrize("attack", [reconnect, reset_on(50), take_nothing])
def test_floods_of_reset_calls_end_no_calls_of_others(
    bundle: Path, attack: Callable[[int, float], None]
) -> None:
    """Three clients need no key for them. gRPC itself cancelled a third of the other calls."""

    def answered(port: int) -> int:
        options = [("grpc.use_local_subchannel_pool", 1)]
        answers = 0
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            while time.monotonic() < until:
                channel.unary_unary(INFER.decode())(ASKED, timeout=20, wait_for_ready=True)
                answers += 1
        return answers

    with serving(bundle) as (_, port), ThreadPoolExecutor(8) as pool:
        until = time.monotonic() + 1.5
        attacks = [pool.submit(attack, port, until) for _ in range(3)]
        others = [pool.submit(answered, port) for _ in range(4)]
        assert all(other.result() for other in others)
        for one in attacks:
            one.result()


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": [{}] * 100_000},
        {"inputs": [{}], "outputs": [{}] * 100_000},
        {"inputs": [{}], "raw_input_contents": [b""] * 100_000},
        {"parameters": {f"{number}": {} for number in range(100_000)}},
        {"inputs": [{"parameters": {f"{number}": {} for number in range(100_000)}}]},
        {"inputs": [{"contents": {"bytes_contents": [b""] * 100_000}}]},
    ],
)
def test_fields_are_counted_before_a_message_is_decoded(
    served: tuple[Process, int], fields: dict[str, Any]
) -> None:
    """Decoding as many as 2 MB can hold would keep the event loop busy for 0.15 s and more."""
    content = METHODS[INFER.decode()].request(**fields).SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{served[1]}") as channel:
        with pytest.raises(grpc.RpcError, match="more than 2000 fields") as refused:
            channel.unary_unary(INFER.decode())(content, timeout=20)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("content", [b"\x08", b"\x0b", b"\xff" * 1_000_000, b"\x2a\x02\x0a"])
def test_bytes_that_are_no_message_are_not_counted(content: bytes) -> None:
    """A field or part without its end, a group, a number of a million bytes: refused at once."""
    with pytest.raises(DecodeError):
        more_fields(content, METHODS[INFER.decode()].request.DESCRIPTOR, 10_000)


async def test_a_call_that_has_just_ended_is_dropped_without_a_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its turn to give way may come before grpc.aio knows of its end."""
    ended = asyncio.Event()

    async def answer(requests: object, context: object) -> None:
        task = _task()
        task.add_done_callback(server.drop)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        task.add_done_callback(lambda _: ended.set())

    async with started(answered_by(answer)) as (port, server):
        with Connection(port) as client:
            stream = client.begin(INFER)
            await asyncio.sleep(0.2)
            client.reset(stream)
            await ended.wait()
            await asyncio.sleep(0.1)
    assert "Traceback" not in capfd.readouterr().err


class _Allocated(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = [(f"field_{number}", ctypes.c_size_t) for number in range(10)]

    @classmethod
    def bytes_now(cls) -> int:
        gc.collect()
        mallinfo2 = ctypes.CDLL(None).mallinfo2
        mallinfo2.restype = cls
        return int(mallinfo2().field_7)


class _Counted(CallLimits):
    """Counts the calls that have begun."""

    begun = 0

    def begin(self, task: ServingTask) -> None:
        self.begun += 1
        super().begin(task)

    async def wait_for(self, begun: int, running: int) -> None:
        for _ in range(1_000):
            if (self.begun, len(self.running)) == (begun, running):
                return
            await asyncio.sleep(0.05)
        raise TimeoutError


async def _reset_500(port: int, limits: _Counted) -> None:
    """Two clients begin calls, reset them, and leave."""
    for _ in range(2):
        with Connection(port) as hostile:
            hostile.socket.sendall(reset_calls(range(1, 501, 2)))
    await limits.wait_for(500, 0)


async def _drop_500(port: int, limits: _Counted) -> None:
    """Two clients take nothing, and their calls are dropped."""
    for number in range(1, 3):
        with Connection(port, window=0) as hostile:
            for _ in range(250):
                hostile.send(hostile.begin(LIVE), message(b""), end=True)
            await limits.wait_for(250 * number, 250)
            for task in [*limits.running]:
                limits.drop(task)
            await limits.wait_for(250 * number, 0)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
@pytest.mark.parametrize("attack", [_reset_500, _drop_500])
async def test_calls_that_end_early_leave_nothing_in_memory(
    attack: Callable[[int, _Counted], Awaitable[None]],
) -> None:
    """grpc.aio kept what it had given to each operation that failed or was cancelled."""

    async def at_rest() -> int:
        """The library frees what belongs to calls a little after their ends."""
        sizes = []
        for _ in range(10):
            await asyncio.sleep(0.2)
            sizes.append(_Allocated.bytes_now())
        return min(sizes)

    limits = _Counted(Service(Settings(), Paths()), lambda task: server.drop(task))
    sizes = []
    async with started(limited_by(limits)) as (port, server):
        for rounds in (2, 4):
            for _ in range(rounds):
                limits.begun = 0
                await attack(port, limits)
            sizes.append(await at_rest())
    assert sizes[1] - sizes[0] < 75 * 4 * 500


async def test_calls_whose_clients_leave_during_a_write_take_no_room() -> None:
    """After a thousand of them, as many answers as ever wait for their clients."""
    dropped: list[object] = []

    async def leave(limits: CallLimits) -> None:
        async def write(content: bytes) -> None:
            raise cygrpc.ExecuteBatchError("send")

        call: Any = Call.__new__(Call)
        call.limits, call._context, call._task = limits, SimpleNamespace(write=write), _task()
        call.release = lambda: None
        limits.begin(call._task)
        with suppress(cygrpc.ExecuteBatchError):
            await call._write(METHODS[LIVE.decode()].response())
        limits.leaves(call._task)  # its status

    limits = CallLimits(Service(Settings(), Paths()), dropped.append)
    for _ in range(limits.most_calls):
        await asyncio.create_task(leave(limits))
    waiting: Any = [asyncio.create_task(asyncio.sleep(0)) for _ in range(10)]
    for task in waiting:
        limits.leaves(task)
    await asyncio.gather(*waiting)
    assert dropped == []


def _task() -> Any:
    return asyncio.current_task()


def test_a_client_that_leaves_during_a_write_is_no_failure() -> None:
    """gRPC ends the write with an error of its own, which was a traceback in the log."""
    call: Any = Call.__new__(Call)
    call.service = SimpleNamespace(lifecycle=SimpleNamespace(stopping=False))
    call.asked_ms = None
    assert isinstance(call._error(cygrpc.ExecuteBatchError("send")), ClientDisconnected)
