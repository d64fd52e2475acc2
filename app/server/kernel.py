"""What the kernel knows of a socket, and does with it. Linux tells more than others."""

import ctypes
import socket
import struct
import sys
from contextlib import suppress

# In Linux's struct tcp_info: milliseconds since data arrived last.
LAST_DATA_RECEIVED = slice(52, 56)
SO_ATTACH_FILTER = 26  # Python has no name for it


def unread_seconds(connection: socket.socket) -> float:
    """How long what was read last had been there, as far as that can be known."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_DATA_RECEIVED.stop)
    except (AttributeError, OSError):  # not Linux, or the connection is gone
        return 0.0
    return int.from_bytes(info[LAST_DATA_RECEIVED], sys.byteorder) / 1000


def has_unread(connection: socket.socket) -> bool:
    """Whether something has arrived that nobody has read."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:  # nothing is there, or the connection is gone
        return False


def take_no_handshake(listener: socket.socket) -> None:
    """Have the kernel drop the first packet of each handshake from now on.

    A client whose handshake is complete and that nobody has accepted is reset when the listener
    closes. So none begins any more; clients try again, a second later, and find the port closed.
    """
    if sys.platform != "linux":
        return
    # Classic BPF on the TCP header: the flags without what does not matter; only SYN is dropped.
    load, mask, compare, give = 0x30, 0x54, 0x15, 0x06
    program = [(load, 0, 0, 13), (mask, 0, 0, 0x12), (compare, 0, 1, 0x02)]
    program += [(give, 0, 0, 0), (give, 0, 0, 0xFFFFFFFF)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    with suppress(OSError):  # it may be forbidden
        listener.setsockopt(
            socket.SOL_SOCKET,
            SO_ATTACH_FILTER,
            struct.pack("HP", len(program), ctypes.addressof(code)),
        )
