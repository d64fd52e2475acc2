"""Messages between the supervisor and a worker: JSON objects over a Unix socket, in order."""

import asyncio
import json
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

MESSAGE_BYTES = 65_536  # at most; the longest name the served models


class Control:
    """One end of the socket. Create it on the event loop.

    ``on_message`` gets each message from the other end, and ``on_end`` is called when there will be
    no more.
    """

    def __init__(
        self,
        channel: socket.socket,
        on_message: Callable[[dict[str, Any]], None],
        on_end: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._on_message = on_message
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[bytes] = deque()
        channel.setblocking(False)
        self._loop.add_reader(channel, self._read)

    def send(self, **message: Any) -> None:
        """Send a message, now or when there is room. If the other end has ended, it is lost."""
        self._unsent.append(json.dumps(message).encode())
        self._flush()

    def close(self) -> None:
        """Send and read no more; may be called more than once."""
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)
            self._loop.remove_writer(self._channel)
            self._channel.close()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._channel.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._channel, self._flush)
            return
        except OSError:  # ``on_end`` tells so
            self._unsent.clear()
        if self._channel.fileno() >= 0:
            self._loop.remove_writer(self._channel)

    def _read(self) -> None:
        try:
            received = self._channel.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if received:
            self._on_message(json.loads(received))
        else:
            self.close()
            self._on_end()
