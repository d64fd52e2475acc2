"""The process that serves: its standard files, limits, memory and addresses, and what signals do to
it from its start to its end: SIGTERM, SIGINT (Ctrl-C) and SIGHUP.
"""

import ctypes
import errno
import ipaddress
import logging
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sentiment_service.errors import UserError

if TYPE_CHECKING:  # their import takes a tenth of a second, in which SIGHUP would end the process
    import asyncio

    from sentiment_service.engine.health import Lifecycle
    from sentiment_service.settings.settings import Settings

# Each connection takes a file descriptor. With more than this, memory would run out first.
MOST_FILES = 65_536
LEAST_FILES = 64
# The received parts of a long body are mostly longer; what a usual request takes is shorter.
RETURNED_BYTES = 65_536
M_MMAP_THRESHOLD = -3  # of glibc; Python has no name for it

_ended_by = 0  # the signal that ended the start


def open_standard_files() -> None:
    """Open the null device in place of standard files that are closed (``2>&-``).

    Otherwise sockets would get their descriptors, and text for standard error go to a client.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)


def raise_file_limit() -> None:
    """Let the process open as many files as the system allows it, up to ``MOST_FILES``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if hard != unlimited and hard < LEAST_FILES:
        raise UserError(
            f"this process may have {hard} files and connections open (ulimit -n); it needs "
            f"{LEAST_FILES} at least"
        )
    wanted = MOST_FILES if hard == unlimited else min(hard, MOST_FILES)
    if soft == unlimited or soft >= wanted:
        return
    with suppress(OSError, ValueError):  # macOS allows less than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def return_long_blocks() -> None:
    """Make the C library return each block of 64 KiB or more to the system when it is freed.

    glibc raises its own threshold when long blocks are freed: after hundreds of long bodies at
    once, the process would keep up to 200 MB that nothing uses.
    """
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, RETURNED_BYTES)


def while_starting() -> None:
    """Until models are loaded: SIGTERM ends the process, and SIGHUP does nothing.

    By default, process 1 of a container ignores SIGTERM, and SIGHUP ends a process.
    """
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _end(number: int, _: object) -> None:
    global _ended_by
    _ended_by = number
    sys.exit(128 + number)


def end_if_told() -> None:
    """End the process if SIGTERM came during the start and did not end it.

    A package that is being imported may make another error of ``SystemExit``, or lose it.
    """
    if _ended_by:
        sys.exit(128 + _ended_by)


def hangups() -> "asyncio.Event":
    """What SIGHUP sets from now on; the server then loads all models again."""
    from asyncio import Event, get_running_loop

    hangup = Event()

    def note(*_: object) -> None:
        try:
            # Not at once: the signal may interrupt a task that is about to wait for the event.
            get_running_loop().call_soon_threadsafe(hangup.set)
        except RuntimeError:  # before and after the loop
            hangup.set()

    signal.signal(signal.SIGHUP, note)
    return hangup


def outside_the_event_loop(lifecycle: "Lifecycle") -> None:
    """Before uvicorn's loop SIGTERM ends the process; after the loop it changes nothing."""
    end_if_told()
    signal.signal(signal.SIGTERM, lambda number, _: lifecycle.stopping or sys.exit(128 + number))


def stop(lifecycle: "Lifecycle", number: int) -> None:
    """SIGTERM or SIGINT while the service runs: stop. A second Ctrl-C ends the process at once."""
    if lifecycle.stopping and number == signal.SIGINT:
        # A runner inside a native call cannot be interrupted, so do not wait for it.
        os._exit(128 + number)
    lifecycle.stop()


def while_ending() -> None:
    """The exit code is decided: SIGTERM and SIGHUP change nothing any more.

    The end of Python's interpreter gives signals with a handler their default, which would kill.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


# What the kernel keeps of an answer that its client does not take, where it would keep megabytes.
UNSENT_BYTES = 131_072
SO_ATTACH_FILTER = 26  # of Linux; Python has no name for it

logger = logging.getLogger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: no client can connect before the models are warm."""
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


def bind_sites(settings: "Settings") -> list[socket.socket]:
    """The sockets of the service's port and, if they have their own, of the metrics' port."""
    ports = [settings.port, *([settings.metrics_port] if settings.metrics_port else [])]
    return [bind(settings.host, port) for port in ports]


def check_ports(settings: "Settings") -> None:
    """Check that the ports of the service, of its metrics and of gRPC can be used."""
    for port in (settings.port, settings.metrics_port, settings.grpc_port):
        if port:
            bind(settings.host, port).close()


def announce(what: str, sites: Sequence[socket.socket], settings: "Settings") -> None:
    """Log what is served at the ``sites`` of ``bind_sites``, and what a browser can open there."""
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

    When a listener closes, the kernel ends the connections that are complete but not accepted. So
    no handshake may begin just before. The client tries again, and finds the port closed.
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
