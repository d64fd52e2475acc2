"""What the kernel can tell about a socket, or do with it. Linux offers more than other systems."""

import ctypes
import socket
import struct
import sys
from contextlib import suppress

# The field of Linux's struct tcp_info with the milliseconds since data last arrived.
LAST_DATA_RECEIVED = slice(52, 56)
SO_ATTACH_FILTER = 26  # Python has no name for it


def unread_seconds(connection: socket.socket) -> float:
    """How many seconds ago data last arrived; 0.0 where the kernel does not tell."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_DATA_RECEIVED.stop)
    except (AttributeError, OSError):  # not Linux, or the connection is gone
        return 0.0
    return int.from_bytes(info[LAST_DATA_RECEIVED], sys.byteorder) / 1000


def unread(connection: socket.socket, size: int) -> bytes:
    """The first bytes that have arrived and are not read yet, ``size`` at most."""
    try:
        return connection.recv(size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:  # there is no data, or the connection is gone
        return b""


def take_no_handshake(listener: socket.socket) -> None:
    """From now on, have the kernel drop the first packet of each handshake.

    When a listener closes, the kernel resets the connections that are complete but not accepted.
    So no new handshake may begin before the close. The client tries again a second later, and
    finds the port closed.
    """
    if sys.platform != "linux":
        return
    # Classic BPF on the TCP header: load the flags, keep SYN and ACK, drop if only SYN is set.
    load, mask, compare, give = 0x30, 0x54, 0x15, 0x06
    program = [(load, 0, 0, 13), (mask, 0, 0, 0x12), (compare, 0, 1, 0x02)]
    program += [(give, 0, 0, 0), (give, 0, 0, 0xFFFFFFFF)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    with suppress(OSError):  # the system may forbid it
        listener.setsockopt(
            socket.SOL_SOCKET,
            SO_ATTACH_FILTER,
            struct.pack("HP", len(program), ctypes.addressof(code)),
        )
