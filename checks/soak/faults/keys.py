"""Clients that guess keys. Their answers are 401."""

import random
from functools import partial

from checks.soak.calls.http import JSON
from checks.soak.faults.outcomes import Fault
from checks.soak.grpc_wire import GrpcClient
from checks.soak.traffic import Traffic
from checks.soak.wire import Connection, request

GUESSES = 100  # of one client, one after the other
REFUSED = {"401"}


def faults(traffic: Traffic, order: random.Random) -> dict[str, Fault]:
    """Guesses over HTTP, for the routes of administrators, and over gRPC."""
    name = traffic.calls.name
    admin = [f"/models/{name}/reload"]
    return {
        "guesses keys": Fault(1, partial(_guess, traffic, order, ["/classify"]), REFUSED),
        "guesses admin keys": Fault(1, partial(_guess, traffic, order, admin), REFUSED),
        "guesses keys over gRPC": Fault(1, partial(_guess_grpc, traffic, order), REFUSED),
        "sends no key": Fault(1, partial(_no_key, traffic), REFUSED),
    }


async def _guess(traffic: Traffic, order: random.Random, paths: list[str]) -> str:
    seen = set()
    for _ in range(GUESSES):
        key = f"Bearer {order.randbytes(16).hex()}"
        path, body = order.choice(paths), b'{"inputs": "love"}'
        sent = request("POST", path, body, content_type=JSON, authorization=key)
        async with await Connection.open(traffic.port) as connection:
            seen.add(str((await connection.ask(sent)).status))
    return _worst(seen)


async def _guess_grpc(traffic: Traffic, order: random.Random) -> str:
    call = traffic.calls.grpc.infer()
    async with GrpcClient(traffic.grpc_port) as client:
        answers = [await client.ask(call, key=order.randbytes(16).hex()) for _ in range(10)]
    return _worst({str(answer.status) for answer in answers})


async def _no_key(traffic: Traffic) -> str:
    lines = b"POST /classify HTTP/1.1\r\nhost: soak\r\ncontent-length: 18\r\n\r\n"
    async with await Connection.open(traffic.port) as connection:
        answer = await connection.ask(lines + b'{"inputs": "love"}')
    return str(answer.status)


def _worst(seen: set[str]) -> str:
    """What is no refusal, if there was such an answer."""
    return next(iter(sorted(seen - REFUSED) or sorted(seen)))
