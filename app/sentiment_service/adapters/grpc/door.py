"""Where gRPC's connections arrive on Linux. Their bytes are handed on to gRPC's C library.

The library takes whatever clients send, and cancels calls of any client when too many wait to be
taken. A call that its client has reset waits as well, even after the end of its connection. So
bytes are handed on only while there is room for all calls that may begin with them.
"""

import asyncio
import os
import socket
import sys
import termios
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from fcntl import ioctl
from typing import cast

from sentiment_service.errors import UserError
from sentiment_service.requests.service import Service

BACKLOG = 2048
# Calls of one connection. gRPC counts a call until it is freed, one that its client has reset as
# well. With 64, it refused those of ordinary clients that had as many at once.
STREAMS = 256
# Calls of a connection that wait to be taken, and of all, with some 25 kB each.
EACH = STREAMS + 1
WAITING = 8 * EACH
# What may begin many calls does not take the room for what begins few.
SHARES = WAITING - WAITING // 4, WAITING // 4
# The shortest frame with which a call begins: its head, and four fields of one byte each.
CALL_BYTES = 13
READ_BYTES = 65_536  # of a connection at once; kept while there is no room
LOOK_S = 0.001  # between two looks at what others have done
# A client that does not take what is left of its answers is disconnected.
LINGER_S = 5.0


class Door:
    """Listens at an address, and connects clients with gRPC's library, which listens at ``inner``.

    Each byte handed on is counted for the most calls that may begin with it. When there is no room,
    nothing is handed on until the library has read everything and no call waits.
    """

    def __init__(
        self, service: Service, most: int, all_taken: Callable[[], Awaitable[None]]
    ) -> None:
        """``most`` clients may come. ``all_taken`` waits for the calls whose bytes were read."""
        host, port = service.settings.host, service.settings.grpc_port
        self.name = f"sentiment-grpc-{os.getpid()}-{port}"
        self.inner = f"unix-abstract:{self.name}"
        self.addresses: dict[str, str] = {}  # of clients, by gRPC's names for them
        self.buffer = memoryview(bytearray(READ_BYTES))  # into which each client is read
        self._most, self._all_taken = most, all_taken
        self._encrypted = bool(service.access.credentials.certificate)
        self._room = [*SHARES]
        self._waiting = deque[Client](), deque[Client]()
        self._counted = Counter[Client]()  # calls that may wait, of each client
        self._making_room: asyncio.Task[None] | None = None
        self._accepted = 0
        self._all_left = asyncio.Event()
        try:
            self._site = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=BACKLOG,
                reuse_port=service.board.workers > 1,
                dualstack_ipv6=":" in host and socket.has_dualstack_ipv6(),
            )
        except OSError as error:
            raise UserError(
                f"cannot listen on {host}:{port} for gRPC ({error.strerror}); choose another port "
                "with --grpc-port"
            ) from error

    async def open(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Client(self), sock=self._site, backlog=BACKLOG
        )

    def close(self) -> None:
        """Accept no more, and hand on nothing that waits."""
        self._server.close()
        if self._making_room:
            self._making_room.cancel()

    async def empty(self) -> None:
        """Wait until all clients have taken the rest."""
        self._all_left.clear()
        if self.addresses:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_left.wait(), LINGER_S)

    def arrived(self, address: str) -> str | None:
        """A name for a new client; None if there are too many."""
        if len(self.addresses) >= self._most:
            return None
        self._accepted += 1
        name = f"{self.name}-{self._accepted}"
        self.addresses[f"unix-abstract:{name}"] = address
        return name

    def left(self, name: str) -> None:
        self.addresses.pop(f"unix-abstract:{name}", None)
        if not self.addresses:
            self._all_left.set()

    def lets_in(self, client: "Client") -> bool:
        """Whether what a client has sent may be handed on now. Otherwise ``hand_on`` follows."""
        if not self._making_room:
            if self._has_room(client):
                return True
            self._making_room = asyncio.create_task(self._make_room())
        self._waiting[self._kind(client)].append(client)
        return False

    def _kind(self, client: "Client") -> int:
        return len(client.kept) > EACH * CALL_BYTES // 4

    def _has_room(self, client: "Client") -> bool:
        """Count the calls that may begin with what the client has sent, if there is room."""
        kind = self._kind(client)
        # The last byte of what is encrypted may begin all calls of a client.
        most = EACH if self._encrypted else len(client.kept) // CALL_BYTES + 1
        calls = min(EACH - self._counted[client], most)
        if calls > self._room[kind]:
            return False
        self._room[kind] -= calls
        self._counted[client] += calls
        return True

    async def _make_room(self) -> None:
        while True:
            until = time.monotonic() + LINGER_S
            while unread := [client for client in self._counted if client.is_unread()]:
                await asyncio.sleep(LOOK_S)
                if time.monotonic() > until:  # the library reads on when the client does
                    for client in unread:
                        client.abort()
            await self._all_taken()
            self._room = [*SHARES]
            self._counted.clear()
            for waiting in self._waiting:
                while waiting and self._has_room(waiting[0]):
                    waiting.popleft().hand_on()
            if not any(self._waiting):
                break
        self._making_room = None


class Client(asyncio.BufferedProtocol):
    """A client's connection. It is not read while what has arrived cannot be handed on."""

    def __init__(self, door: Door) -> None:
        self.kept = b""
        self._door = door
        self._name = ""
        self._full = 0  # of both sides
        self._inner: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if name := self._door.arrived(transport.get_extra_info("peername")[0]):
            self._name = name
            self._connecting = asyncio.create_task(self._connect())
        else:
            self.transport.abort()

    async def _connect(self) -> None:
        try:
            inner = socket.socket(socket.AF_UNIX)
            inner.setblocking(False)
            inner.bind(f"\0{self._name}")
            inner.connect(f"\0{self._door.name}")
        except OSError:  # no file descriptor is left
            self.transport.abort()
            return
        self._inner, _ = await asyncio.get_running_loop().create_unix_connection(
            lambda: _Inner(self), sock=inner
        )
        if self.transport.is_closing():
            self._inner.abort()
        elif self.kept:
            self._offer()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._door.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.kept += self._door.buffer[:nbytes]
        self._offer()

    def _offer(self) -> None:
        if self._inner is not None and self._door.lets_in(self):
            self.hand_on()
        else:
            self.transport.pause_reading()

    def hand_on(self) -> None:
        if self._inner is not None and not self.transport.is_closing():
            kept, self.kept = self.kept, b""
            self._inner.write(kept)
            self._read_on()

    def _read_on(self) -> None:
        if not self._full and not self.kept:
            self.transport.resume_reading()

    def fill(self) -> None:
        """Do not read on: much has not been sent to the library, or to the client."""
        self._full += 1
        self.transport.pause_reading()

    def drain(self) -> None:
        self._full -= 1
        self._read_on()

    def is_unread(self) -> bool:
        """Whether the library has not read all that was handed on. It closes what it has read."""
        if self._inner is None or self._inner.is_closing():
            return False
        where = self._inner.get_extra_info("socket").fileno()
        unread = int.from_bytes(ioctl(where, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        return bool(unread or self._inner.get_write_buffer_size())

    def pause_writing(self) -> None:
        self.fill()
        if self._inner is not None:
            self._inner.pause_reading()

    def resume_writing(self) -> None:
        self.drain()
        if self._inner is not None:
            self._inner.resume_reading()

    def abort(self) -> None:
        self.transport.abort()
        if self._inner is not None:
            self._inner.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._inner is None or self._inner.is_closing():
            self._door.left(self._name)
        else:  # the library closes it when it has read all
            self._inner.resume_reading()
            self._inner.write_eof()

    def inner_lost(self) -> None:
        if self.transport.is_closing():
            self._door.left(self._name)
        else:
            self.transport.close()
            asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)


class _Inner(asyncio.Protocol):
    """The connection to gRPC that stands for a client's."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        if not self._client.transport.is_closing():
            self._client.transport.write(data)

    def pause_writing(self) -> None:
        self._client.fill()

    def resume_writing(self) -> None:
        self._client.drain()

    def connection_lost(self, error: Exception | None) -> None:
        self._client.inner_lost()
