"""Clients whose compressed bodies are too large, damaged, or not what they say."""

import gzip
import json
import random
import zlib
from collections.abc import Callable
from functools import partial

from checks.soak.calls import COMPRESS, JSON, NDJSON
from checks.soak.grpc_wire import STATUSES
from checks.soak.outcomes import Fault
from checks.soak.wire import Connection, request

# A body of 50 MB in each encoding, above the limit of 2 MB.
BOMBS = {encoding: compress(bytes(50_000_000)) for encoding, compress in COMPRESS.items()}
# 1.8 MB that decompress to nothing: each member is empty.
MEMBERS = gzip.compress(b"") * 90_000
TEXTS = json.dumps({"inputs": ["love, " * 50] * 20}).encode()
ROUTES = (("/classify", JSON), ("/classify/stream", NDJSON), ("/invocations", JSON))


def faults(port: int, order: random.Random) -> dict[str, Fault]:
    """Each is refused with an answer, on each kind of route."""
    sends = partial(_send, port, order)
    return {
        "sends a decompression bomb": Fault(3, partial(sends, _bomb), {"413"}),
        "sends thousands of empty gzip members": Fault(1, partial(sends, _members), {"422", "429"}),
        "sends half of a compressed body": Fault(3, partial(sends, _half), {"422"}),
        "sends damaged compressed data": Fault(3, partial(sends, _damaged), {"422"}),
        "sends an unknown content-encoding": Fault(1, partial(sends, _unknown), {"415"}),
    }


async def _send(
    port: int, order: random.Random, body: Callable[[random.Random], tuple[str, bytes]]
) -> str:
    path, content_type = order.choice(ROUTES)
    encoding, content = body(order)
    headers = {"content_type": content_type, "content_encoding": encoding, "connection": "close"}
    async with await Connection.open(port) as connection:
        answer = await connection.ask(request("POST", path, content, **headers))
    if answer.status != 200:
        return str(answer.status)
    # A stream has begun before its body is read: then its last line says what is wrong.
    return str(STATUSES[json.loads(answer.body.splitlines()[-1])["error"]["code"]])


def _bomb(order: random.Random) -> tuple[str, bytes]:
    return order.choice(list(BOMBS.items()))


def _members(order: random.Random) -> tuple[str, bytes]:
    return "gzip", MEMBERS


def _half(order: random.Random) -> tuple[str, bytes]:
    encoding, compress = order.choice(list(COMPRESS.items()))
    content = compress(TEXTS)
    return encoding, content[: len(content) // 2]


def _damaged(order: random.Random) -> tuple[str, bytes]:
    """What is not compressed at all, or compressed in another way than it says."""
    encoding = order.choice(list(COMPRESS))
    return encoding, order.choice([TEXTS, zlib.compress(TEXTS)[2:-4], order.randbytes(500)])


def _unknown(order: random.Random) -> tuple[str, bytes]:
    return order.choice(["zstd", "gzip, gzip", "none"]), TEXTS
