"""Where gRPC's connections arrive. Their bytes are handed on to gRPC's library, in turns at first.

The library takes whatever clients send. It cancels calls of any client when many wait to be taken,
and a call that its client has reset waits as well. So who resets calls is read slowly, and so are
new connections then.
"""

import asyncio
import os
import select
import socket
from collections import deque
from typing import cast

from sentiment_service.errors import UserError

BACKLOG = 2048
# Connections that are read in turns, each until one of its calls has been taken, or for so many
# seconds: longer after many resets, and then in spite of a call.
AT_ONCE, TURN_S, RESETS_TURN_S = 6, 0.05, 0.5
# Resets of calls that were not taken yet are many: on a connection, if they are so many more than
# other calls, and of all clients, if so many have come faster than these in a second.
MANY, MANY_PER_S, MOST = 16, 32, 96
# A client that does not take what is left of its answers is disconnected.
LINGER_S = 5.0


class Door:
    """Listens at an address, and connects clients with gRPC's library, which listens at ``inner``.

    Create it on the event loop.

    Raises:
        UserError: the address cannot be used.
    """

    def __init__(self, host: str, port: int, *, shared: bool, most: int) -> None:
        """Other processes may listen there, too, if it is ``shared``. At most ``most`` clients."""
        self.name = f"sentiment-grpc-{os.getpid()}-{port}"
        self.inner = f"unix-abstract:{self.name}"
        self.clients: dict[str, Client] = {}  # by gRPC's names for them
        self._most = most
        self._accepted = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Client] = deque()
        self._latest_is_next = False
        self._turns: dict[Client, asyncio.TimerHandle] = {}
        self._resets, self._reset_at = 0.0, 0.0
        self._site = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._site.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._site.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
        try:
            self._site.bind((host, port))
            self._site.listen(BACKLOG)
        except OSError as error:
            self._site.close()
            raise UserError(
                f"cannot listen on {host}:{port} for gRPC ({error.strerror}); choose another port "
                "with --grpc-port"
            ) from error

    async def open(self) -> None:
        """Begin to accept."""
        self._server = await self._loop.create_server(
            lambda: Client(self), sock=self._site, backlog=BACKLOG
        )

    def close(self) -> None:
        """Accept no more."""
        self._server.close()

    async def empty(self) -> None:
        """Wait until all clients have taken the rest."""
        if ends := [client.ended for client in self.clients.values()]:
            await asyncio.wait(ends, timeout=LINGER_S)

    def arrived(self, client: "Client") -> str | None:
        """A name for a new client, whose turn will come; None if there are too many."""
        if len(self.clients) >= self._most:
            return None
        self._accepted += 1
        name = f"{self.name}-{self._accepted}"
        self.clients[f"unix-abstract:{name}"] = client
        return name

    def left(self, name: str) -> None:
        self.clients.pop(f"unix-abstract:{name}", None)

    def wait(self, client: "Client") -> None:
        """Let it begin when it has a turn."""
        self._waiting.append(client)
        self._next()

    def taken(self, peer: str, *, reset: bool) -> None:
        """Note a call of the client that gRPC calls ``peer``, which may have reset it before."""
        if reset:
            self._resets, self._reset_at = min(MOST, self._excess() + 1), self._loop.time()
        if client := self.clients.get(peer):
            client.resets = max(0, client.resets + (1 if reset else -1))
            if client.resets >= MANY:
                client.trusted = False
            elif client.resets == 0 and not reset:
                client.trusted = True
                if self._excess() < MANY:
                    self._end_turn(client)

    def _excess(self) -> float:
        return max(0.0, self._resets - MANY_PER_S * (self._loop.time() - self._reset_at))

    def _next(self) -> None:
        while self._waiting and len(self._turns) < AT_ONCE:
            # In order of arrival, all would wait for those that come most often.
            self._latest_is_next = not self._latest_is_next
            client = self._waiting.pop() if self._latest_is_next else self._waiting.popleft()
            if client.begin():
                turn_s = TURN_S if self._excess() < MANY else RESETS_TURN_S
                self._turns[client] = self._loop.call_later(turn_s, self._end_turn, client)

    def _end_turn(self, client: "Client") -> None:
        if turn := self._turns.pop(client, None):
            turn.cancel()
            client.has_turn = False
            self._next()


class Client(asyncio.Protocol):
    """A client's connection. It is read while it has a turn, or is trusted."""

    def __init__(self, door: Door) -> None:
        self.resets = 0
        self.trusted = self.has_turn = self.is_full = False
        self.address = ""
        self._door = door
        self.ended = asyncio.get_running_loop().create_future()
        self._name = ""
        self._kept: list[bytes] = []
        self._waits = False
        self._inner: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.address = transport.get_extra_info("peername")[0]
        if name := self._door.arrived(self):
            self._name = name
            self._wait()
        else:
            self.transport.abort()

    def begin(self) -> bool:
        """Have a turn. Returns False if the client has left meanwhile."""
        self._waits = False
        if self.transport.is_closing():
            return False
        left = select.poll()
        left.register(self.transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        if left.poll(0):
            self.transport.abort()
            return False
        self.has_turn = True
        if self._inner is None:
            self._connecting = asyncio.create_task(self._connect())
        else:
            self.hand_on()
        return True

    def data_received(self, data: bytes) -> None:
        if self._inner is not None and (self.trusted or self.has_turn) and not self._kept:
            self._inner.write(data)
        else:
            self._kept.append(data)
            self.hand_on()

    def hand_on(self) -> None:
        """Give gRPC what has arrived, if it is the client's turn; and read on, or not."""
        if self.trusted or self.has_turn:
            if self._inner is not None:
                kept, self._kept = self._kept, []
                for data in kept:
                    self._inner.write(data)
        elif self._kept and not self._waits:
            self._wait()
        if self._kept or self.is_full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_reading()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(None)
        self._door.left(self._name)
        if self._inner is not None:
            self._inner.abort()

    def _wait(self) -> None:
        self._waits = True
        self._door.wait(self)

    async def _connect(self) -> None:
        try:
            inner = socket.socket(socket.AF_UNIX)
        except OSError:  # no file descriptor is left
            self.transport.abort()
            return
        inner.setblocking(False)
        try:
            inner.bind(f"\0{self._name}")
            inner.connect(f"\0{self._door.name}")
        except OSError:
            inner.close()
            self.transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._inner, _ = await loop.create_unix_connection(lambda: _Inner(self), sock=inner)
        if self.transport.is_closing():
            self._inner.abort()
        else:
            self.hand_on()


class _Inner(asyncio.Protocol):
    """The connection to gRPC that stands for a client's."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.transport.write(data)

    def pause_writing(self) -> None:
        self._client.is_full = True
        self._client.hand_on()

    def resume_writing(self) -> None:
        self._client.is_full = False
        self._client.hand_on()

    def connection_lost(self, error: Exception | None) -> None:
        self._client.transport.close()
        asyncio.get_running_loop().call_later(LINGER_S, self._client.transport.abort)
