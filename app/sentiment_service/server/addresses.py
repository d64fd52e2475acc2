"""Binds the addresses of the service, and says where it can be reached."""

import ctypes
import errno
import ipaddress
import logging
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress

from sentiment_service.errors import UserError
from sentiment_service.settings.settings import Settings

SO_ATTACH_FILTER = 26  # of Linux; Python has no name for it

logger = logging.getLogger(__name__)

# What the kernel keeps of an answer that its client does not take: it would keep megabytes of each
# connection, which count for the memory of a container. Connections have it from their listener.
UNSENT_BYTES = 131_072


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: no client can connect before the models are warm.

    Raises:
        UserError: the address cannot be used.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    listener.setblocking(False)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise cannot_listen(host, port, error) from error
    return listener


def bind_sites(settings: Settings) -> list[socket.socket]:
    """The sockets of the service's port and, if they have their own, of the metrics' port.

    gRPC opens its own when the models are warm.

    Raises:
        UserError: an address cannot be used.
    """
    ports = [settings.port, *([settings.metrics_port] if settings.metrics_port else [])]
    return [bind(settings.host, port) for port in ports]


def check_ports(settings: Settings) -> None:
    """Check that the ports of the service, of its metrics and of gRPC can be used.

    Raises:
        UserError: another process has one of them, or the host is not this machine.
    """
    for port in (settings.port, settings.metrics_port, settings.grpc_port):
        if port:
            bind(settings.host, port).close()


def announce(what: str, sites: Sequence[socket.socket], settings: Settings) -> None:
    """Log what is served at the bound ``sites``, and what a browser can open there.

    The first site is the service's, the second one that of the metrics, if they have their own.
    """
    urls = [f"http://{_place(site)}" for site in sites]
    if settings.tls_cert:
        urls[0] = f"https://{_place(sites[0])}"
    pages = {"page": f"{urls[0]}/"}
    if settings.docs == "on":
        pages["docs"] = f"{urls[0]}/docs"
    pages["metrics"] = f"{urls[-1]}/metrics"
    logger.info("serving %s at %s", what, urls[0], extra={"fields": pages})
    address = ipaddress.ip_address(sites[0].getsockname()[0].partition("%")[0])
    if not (settings.has_keys or address.is_loopback):
        logger.warning("everyone who reaches %s may send requests: there are no API keys", urls[0])


def _place(site: socket.socket) -> str:
    host, port = site.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cannot_listen(host: str, port: int, error: OSError) -> UserError:
    """Why nobody can listen there, for people."""
    advice = ""
    if error.errno == errno.EADDRINUSE:
        advice = "; choose another with --port (--metrics-port, --grpc-port)"
    elif error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        advice = "; --host is an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"
    return UserError(f"cannot listen on {host} port {port}: {error.strerror}{advice}")


def take_no_handshake(listener: socket.socket) -> None:
    """From now on, have the kernel drop the first packet of each handshake.

    When a listener closes, the kernel ends the connections that are complete but not accepted: 25
    clients of 1,200 in 200 closes. So no new handshake may begin before the close. The client tries
    again a second later, and finds the port closed.
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
