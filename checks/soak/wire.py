"""A simple HTTP client that needs little CPU time, because it shares the CPUs with the server."""

import asyncio
import gzip
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, TypeAlias

import brotli

Address: TypeAlias = tuple[str, int]

KEY, ADMIN_KEY = "key-of-the-soak", "admin-key-of-the-soak"

ANSWER_S = 120.0  # after this time, an answer counts as lost; under overload, streams wait long


class Lost(Exception):
    """The connection ended, or the time was over, before the answer was complete.

    ``client`` is the connection's address at our side, and ``opened`` its start on the clock
    ``time.monotonic``. Those of gRPC are not known.
    """

    def __init__(self, reason: str, client: Address | None = None, opened: float = 0.0) -> None:
        super().__init__(reason)
        self.client = client
        self.opened = opened


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer, decompressed. The body of gRPC is the message, or the error."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def late(self) -> bool:
        """Whether the deadline passed before all of its texts were computed."""
        return self.status == 504 or b'"error":{"code":"deadline_exceeded"' in self.body

    @property
    def closes(self) -> bool:
        """Whether the server closes this connection."""
        return self.headers.get("connection", "").lower() == "close"


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request with a valid key, unless ``authorization`` is given.

    Underscores in the names of headers become hyphens.
    """
    headers = {"authorization": f"Bearer {KEY}"} | headers
    lines = [f"{method} {path} HTTP/1.1", "host: soak"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if method == "POST":
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Connection:
    """One connection to the server. ``client`` is its address at our side."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, opened: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.client: Address = writer.get_extra_info("sockname")[:2]
        self._opened = opened

    @classmethod
    async def open(cls, port: int, tls: ssl.SSLContext | None = None) -> Self:
        """Connect; raises ``OSError`` if the server does not listen."""
        # Before the kernel opens it: a worker may have it, and be killed, before we go on.
        opened = time.monotonic()
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls), opened)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close at once; data on its way is lost."""
        self._writer.transport.abort()

    def end_sending(self) -> None:
        """Close the sending side; answers can still be read; raises ``Lost``."""
        with self._closed_is_lost():
            self._writer.write_eof()

    async def send(self, data: bytes) -> None:
        """Send data and wait until the server has read enough of it; raises ``Lost``."""
        with self._closed_is_lost():
            self._writer.write(data)
            await self._writer.drain()

    async def ask(self, data: bytes) -> Answer:
        """Send a request and wait for its answer; raises ``Lost``."""
        with self._closed_is_lost():
            self._writer.write(data)
        return await self.answer()

    async def answer(self) -> Answer:
        """Read the next answer. Closes the connection and raises ``Lost`` if it does not come."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._answer()
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.close()
            raise self._lost(repr(error)) from error

    @contextmanager
    def _closed_is_lost(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # uvloop's, if the connection is already closed
            raise self._lost(f"while sending: {error!r}") from error

    def _lost(self, reason: str) -> Lost:
        return Lost(reason, self.client, self._opened)

    async def _answer(self) -> Answer:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.split("\r\n")[:-2]
        status = int(status_line.split(" ")[1])
        if status == 100:
            return await self._answer()
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        if headers.get("transfer-encoding") == "chunked":
            body = await self._chunks()
        else:
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        match headers.get("content-encoding"):
            case "gzip":
                body = gzip.decompress(body)
            case "br":
                body = brotli.decompress(body)
        return Answer(status, headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
        return body


class Kept:
    """A connection for many requests; another one after an answer that says that it ends."""

    def __init__(self, open_: Callable[[], Awaitable[Connection]]) -> None:
        self._open = open_
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._close()

    async def ask(self, data: bytes) -> Answer:
        """Send a request and wait for its answer; raises ``Lost``."""
        self._connection = self._connection or await self._open()
        answer = await self._connection.ask(data)
        if answer.closes:
            self._close()
        return answer

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
