"""Hostile gRPC clients. After each of them, an ordinary call must be answered as ever."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from checks.soak.faults.outcomes import CORRECT, Fault
from checks.soak.grpc_wire import GrpcClient
from checks.soak.traffic import Traffic
from checks.soak.wire import KEY
from checks.support import http2

AUTHORIZATION = (b"authorization", f"Bearer {KEY}".encode())
NOT_UTF8 = [(b"authorization", b"Bearer \xff\xfe"), (b"x-request-id", b"\xc3\x28")]
HOLD_S = 2.0  # how long a client keeps what it has opened
WAIT_S = 5.0  # for the server's frames
Act = Callable[[int], None]


def faults(traffic: Traffic) -> dict[str, Fault]:
    """What each hostile client does."""
    acts: dict[str, Act] = {
        "calls a gRPC path that is not UTF-8": _bad_path,
        "sends gRPC metadata that is not UTF-8": _bad_metadata,
        "holds back the last byte of gRPC messages": _held_back,
        "opens 500 gRPC Watch streams": _watch_flood,
        "opens and resets 6,000 gRPC calls": _reset_flood,
        "resets 256 gRPC calls on each of 60 connections": _reset_on_new_connections,
        "gives no room for 1,000 gRPC answers": _no_room,
        "sends long messages to open gRPC methods": _long_questions,
    }
    return {
        name: Fault(1, partial(_inflict, traffic, act), {CORRECT, "429"})
        for name, act in acts.items()
    }


@contextmanager
def ignores_goaway(port: int) -> Iterator[None]:
    """A client whose stream stays open although the server says goodbye."""
    with http2.Connection(port, polite=False) as connection:
        connection.send(connection.begin(http2.WATCH), http2.message(b""), end=True)
        yield


async def _inflict(traffic: Traffic, act: Act) -> str:
    await asyncio.to_thread(act, traffic.grpc_port)
    call = traffic.calls.grpc.infer()
    async with GrpcClient(traffic.grpc_port) as client:
        return traffic.tally.outcome(call, await client.ask(call))


def _bad_path(port: int) -> None:
    with http2.Connection(port, timeout_s=WAIT_S) as connection:
        connection.begin(http2.NOT_TEXT, [AUTHORIZATION])
        _read_all(connection)


def _bad_metadata(port: int) -> None:
    with http2.Connection(port, timeout_s=WAIT_S) as connection, suppress(OSError):
        for _ in range(100):
            stream = connection.begin(http2.INFER, NOT_UTF8)
            connection.send(stream, http2.message(b""), end=True)
        _read_all(connection)


def _held_back(port: int) -> None:
    with ExitStack() as stack:
        for _ in range(20):
            with suppress(OSError):  # the server may refuse or close it
                connection = stack.enter_context(http2.Connection(port, timeout_s=WAIT_S))
                http2.hold_back(connection, 1_000_000, [AUTHORIZATION])
        time.sleep(HOLD_S)


def _watch_flood(port: int) -> None:
    with http2.Connection(port, timeout_s=WAIT_S) as connection, suppress(OSError):
        for _ in range(500):
            stream = connection.begin(http2.WATCH)
            connection.send(stream, http2.message(b""), end=True)
        time.sleep(HOLD_S)


def _reset_flood(port: int) -> None:
    with http2.Connection(port, timeout_s=WAIT_S) as connection, suppress(OSError):
        for _ in range(6_000):
            connection.reset(connection.begin(http2.INFER, [AUTHORIZATION]))
        connection.ping()


def _reset_on_new_connections(port: int) -> None:
    flood = http2.reset_calls(range(1, 512, 2))
    for _ in range(60):
        with suppress(OSError), http2.Connection(port, timeout_s=0.5) as connection:
            connection.socket.sendall(flood)
            connection.ping()


def _no_room(port: int) -> None:
    with ExitStack() as stack:
        for _ in range(4):
            with suppress(OSError):
                connection = stack.enter_context(http2.Connection(port, window=0, timeout_s=WAIT_S))
                for _ in range(250):
                    stream = connection.begin(http2.LIVE)
                    connection.send(stream, http2.message(b""), end=True)
        time.sleep(HOLD_S)


def _long_questions(port: int) -> None:
    with http2.Connection(port, window=0, timeout_s=WAIT_S) as connection, suppress(OSError):
        for _ in range(20):
            connection.send(connection.begin(http2.REFLECT), http2.message(bytes(1_000_000)))


def _read_all(connection: http2.Connection) -> None:
    """Read until the server closes the connection or has nothing more to say."""
    with suppress(TimeoutError):
        while connection.read():
            pass
