"""Many clients at once that read the pages which need no key."""

import asyncio
import re
from functools import partial

from checks.soak.call import Call
from checks.soak.outcomes import DONE, Fault
from checks.soak.traffic import Traffic
from checks.soak.wire import Answer, Connection, Lost, request

READERS = 50
# Each reader asks for these and for what /docs refers to, and takes compressed answers.
PAGES = {
    "/docs": b"<!doctype html>",
    "/openapi.json": b'"/classify"',
    "/metrics": b"sentiment_model_ready",
    "/info": b'"limits"',
}
REFERENCE = re.compile(rb'(?:src|href)="((?:docs|web)/[^"]+)"')


def faults(traffic: Traffic) -> dict[str, Fault]:
    """All of them at once, as often as they are answered."""
    return {f"{READERS} clients read the open pages": Fault(1, partial(_read, traffic), {DONE})}


async def _read(traffic: Traffic) -> str:
    await asyncio.gather(*(_reader(traffic) for _ in range(READERS)))
    return DONE


async def _reader(traffic: Traffic) -> None:
    try:
        async with await Connection.open(traffic.port) as connection:
            answers = [await _page(traffic, connection, *page) for page in PAGES.items()]
            for path in REFERENCE.findall(answers[0].body):
                await _page(traffic, connection, f"/{path.decode()}", b"")
    except (Lost, OSError) as error:
        traffic.lost(_call("a page", b"", b""), error)


async def _page(traffic: Traffic, connection: Connection, path: str, words: bytes) -> Answer:
    sent = request("GET", path, accept_encoding="gzip, br")
    answer = await connection.ask(sent)
    traffic.tally.answered(_call(path, sent, words), answer, {429})
    return answer


def _call(path: str, sent: bytes, words: bytes) -> Call:
    return Call(f"GET {path}, by {READERS} at once", sent, 8, lambda a: words in a.body.lower())
