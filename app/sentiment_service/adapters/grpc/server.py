"""The gRPC server, in the same event loop as the HTTP server."""

import asyncio
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, cast

# Its C library writes to standard error by itself, whoever reads it: a pipe that nobody empties
# would stop all calls. Whoever looks for a fault in gRPC sets the variable.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from grpc._cython import cygrpc

from sentiment_service.adapters.grpc import call, methods
from sentiment_service.adapters.grpc.door import EACH, STREAMS, WAITING, Door
from sentiment_service.errors import ANSWERS, UserError
from sentiment_service.observability.metrics import Metrics
from sentiment_service.requests.limits import Access
from sentiment_service.requests.service import Service

CONNECTIONS = 1_000  # and fewer where they would take more than --max-inflight-bytes at rest
CONNECTION_BYTES = 262_144  # gRPC keeps buffers as large as what it last read at once
LEAST_CONNECTIONS = 64
# gRPC cancels further ones. On Linux, ``Door`` lets WAITING come, and those of connections that the
# library's threads, at most 16, are parsing.
MOST_WAITING = WAITING + 16 * EACH
LINUX = sys.platform == "linux"

UNKNOWN = "unknown"  # the key of the handler for all unknown methods
AT_ONCE = 16  # calls of a busy method that are taken at the same time

logger = logging.getLogger(__name__)


class AioServer(cygrpc.AioServer):  # type: ignore[misc] # grpcio comes without types
    """Answers calls by the handlers of their paths, and those of other paths by that of UNKNOWN.

    grpc.aio decodes the path of an unknown method as UTF-8, and bytes that are not end the server
    with all its calls. So all methods are registered, and the calls of no method are taken for
    those of one more.

    grpc.aio takes several iterations of the event loop to take one call of a method. When these are
    long, the C library cancels calls that wait. So each method of ``busy`` is registered several
    times, by names that no client can guess.

    ``crashed`` is called with the error if the server ends by itself. This uses names that grpcio
    keeps to itself. If a later version has others, a test fails.
    """

    def __init__(
        self,
        options: list[tuple[str, int]],
        handlers: Mapping[str, grpc.RpcMethodHandler],
        *,
        busy: Collection[str] = (),
        crashed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(call.Operations(), None, (), (), options, None)
        self._crashed = crashed
        again = {secrets.token_hex(): path for path in busy for _ in range(AT_ONCE - 1)}
        again[secrets.token_hex()] = UNKNOWN
        named = {**handlers, **{name: handlers[path] for name, path in again.items()}}
        del named[UNKNOWN]
        self._mark = secrets.token_hex()
        self.add_registered_method_handlers({**named, self._mark: handlers[UNKNOWN]})
        # The method whose calls each name takes; None is all unknown ones.
        self._takes = {
            name.encode(): None if (path := again.get(name, name)) == UNKNOWN else path.encode()
            for name in named
        }
        self._taking: dict[bytes, asyncio.Task[object]] = {}
        if LINUX:
            self.add_insecure_port(f"unix-abstract:{self._mark}".encode())

    def drop(self, serving: call.ServingTask) -> None:
        """End the call that a task serves: the C library frees one to which no task refers."""
        if not serving.done():  # otherwise grpc.aio prints the error of a task that waits for it
            if serving is not asyncio.current_task():  # which ends by itself
                serving.cancel()
            serving.maker.cancel()

    async def all_taken(self) -> None:
        """Wait until the calls have been taken for which the C library had read the bytes before.

        It gives calls in the order in which they come. So none is left of a method when somebody
        still waits after a call of ours has come. Only on Linux.
        """
        free: set[bytes | None] = set()
        while free != {*self._takes.values()}:
            taking = {**self._taking}
            await asyncio.sleep(0)  # the latest of them begin to wait
            with suppress(OSError), socket.socket(socket.AF_UNIX) as own:  # there may be too many
                own.setblocking(False)
                own.connect(f"\0{self._mark}")
                own.sendall(_call_of(self._mark.encode()))
                await asyncio.shield(self._take(self._mark.encode()))
                free |= {self._takes[name] for name, one in taking.items() if not one.done()}

    async def _start_shutting_down(self) -> None:
        # ``shutdown`` calls this and then closes the connections. grpc.aio's own waits in between;
        # then calls that come in this time are cancelled, and look so to clients.
        closing_the_port = super()._start_shutting_down()
        with suppress(Exception):  # what has ended the server: see ``crashed``
            closing_the_port.send(None)
        closing_the_port.close()

    def _make_request_call_future(self, method: bytes | None) -> Any:
        """A future that is done when a call of the method has come, or with None of no method."""
        if method not in self._takes:
            return asyncio.get_running_loop().create_future()  # see _takes, all_taken
        self._taking[method] = self._take(self._takes[method])
        return asyncio.shield(self._taking[method])

    def _take(self, method: bytes | None) -> asyncio.Task[object]:
        # grpc.aio cancels these futures when the server ends. Without a shield, this would free
        # what the C library still writes to when it gives them up.
        taking: asyncio.Task[object] = super()._make_request_call_future(method)
        taking.add_done_callback(_given_up)
        return taking

    def _serving_task_crash_handler(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._crashed(error)


def _given_up(taking: asyncio.Task[object]) -> None:
    """Read the error with which each ends when the server does, so that asyncio does not log it."""
    if not taking.cancelled():
        taking.exception()


def _call_of(method: bytes) -> bytes:
    """What a client sends that opens a connection and calls a method: four frames of HTTP/2."""
    fields = b"\x83\x86\x04%c%b\x01\x01x\x00\x02te\x08trailers" % (len(method), method)
    settings, headers = b"\0\0\0\x04\0\0\0\0\0", b"\0\0%c\x01\x04\0\0\0\x01" % len(fields)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + headers + fields


def rpc_handler(
    limits: call.CallLimits, path: str, handler: call.Handler | None
) -> grpc.RpcMethodHandler:
    """What gRPC calls for a method, or for all unknown ones, with bytes.

    As all are streams, a call without a key is refused before its message is read.
    """

    async def handle(requests: object, context: call.Context) -> None:
        task = cast(call.ServingTask, asyncio.current_task())
        limits.begin(task)
        await call.Call(limits, path, handler, context).run()
        limits.leaves(task)

    return grpc.stream_stream_rpc_method_handler(handle)


def expect_calls(metrics: Metrics) -> None:
    """Make the series of INFER before its first call: so a rate sees it, and an alert an error."""
    for status, outcome in ANSWERS:
        metrics.expect_request(call.INFER, call.GRPC, status, outcome, "classify")


class GrpcServer:
    """Answers gRPC calls from ``start`` to ``stop``. Create it on the event loop."""

    def __init__(self, service: Service) -> None:
        # gRPC's Python part logs metadata that it cannot decode, which may be a key.
        logging.getLogger("grpc._cython.cygrpc").disabled = True
        settings = service.settings
        handlers = methods.HANDLERS
        if settings.docs == "on":
            handlers = {**handlers, methods.REFLECT: methods.reflect}
        self._service = service
        self._limits = call.CallLimits(service, lambda task: self._server.drop(task))
        by_path = {path: rpc_handler(self._limits, path, one) for path, one in handlers.items()}
        by_path[UNKNOWN] = rpc_handler(self._limits, UNKNOWN, None)
        self._server = AioServer(
            _options(service), by_path, busy=[call.INFER], crashed=self._crashed
        )
        host, port = settings.host, settings.grpc_port
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        where, self._door = self._address, None
        if LINUX:
            self._door = Door(service, _connections(service), self._server.all_taken)
            where, self._limits.addresses = self._door.inner, self._door.addresses
        if credentials := _credentials(service.access):
            bound = self._server.add_secure_port(where.encode(), credentials)
        else:
            bound = self._server.add_insecure_port(where.encode())
        if not bound:  # gRPC does not say why
            raise UserError(
                f"cannot listen on {self._address} for gRPC; choose another port with --grpc-port"
            )
        expect_calls(service.metrics)

    def _crashed(self, error: BaseException) -> None:
        # Not the error's own text: it may quote what a client sent.
        logger.error("gRPC ended with %s", type(error).__name__)
        self._service.lifecycle.failure = "gRPC has ended"

    async def start(self) -> None:
        """Accept calls. If the server ends by itself, liveness fails."""
        await self._server.start()
        if self._door:
            await self._door.open()
        logger.info("serving gRPC at %s", self._address)

    async def stop(self, stop_by: float) -> None:
        """Finish the calls in progress until ``stop_by``, then disconnect all clients.

        Later calls, and those whose message has not arrived, get UNAVAILABLE.
        """
        self._limits.arriving.give_up_all()
        if running := set(self._limits.running):
            await asyncio.wait(running, timeout=max(0.0, stop_by - time.monotonic()))
        if self._door:
            self._door.close()
        await self._server.shutdown(None)
        if self._door:
            await self._door.empty()


def _credentials(access: Access) -> grpc.ServerCredentials | None:
    """The certificate in force, which gRPC asks for again at each handshake."""
    if not access.credentials.certificate:
        return None

    def read() -> object:
        pair = (access.credentials.private_key, access.credentials.certificate)
        return grpc.ssl_server_certificate_configuration([pair])

    return grpc.dynamic_ssl_server_credentials(read(), read)


def _connections(service: Service) -> int:
    bytes_allowed = service.inflight.limit // service.board.workers
    return min(CONNECTIONS, max(LEAST_CONNECTIONS, bytes_allowed // CONNECTION_BYTES))


def _options(service: Service) -> list[tuple[str, int]]:
    settings = service.settings
    return [
        # The workers of a service share a port. Two services must not.
        ("grpc.so_reuseport", int(service.board.workers > 1)),
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_metadata_size", settings.max_header_bytes),
        ("grpc.absolute_max_metadata_size", settings.max_header_bytes),
        # Otherwise each call may send up to 4 MB that nobody reads.
        ("grpc.http2.lookahead_bytes", call.WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.server.max_pending_requests", MOST_WAITING),
        ("grpc.server.max_pending_requests_hard_limit", MOST_WAITING + 1),
        # On Linux, ``Door`` counts them. A call of ``all_taken`` is never refused.
        *([] if LINUX else [("grpc.max_allowed_incoming_connections", _connections(service))]),
        # Calls that have waited for so many seconds would be cancelled without an answer of ours.
        ("grpc.server_max_unrequested_time_in_server", 3_600),
        # A client that does nothing for this long is disconnected, as over HTTP.
        ("grpc.max_connection_idle_ms", 75_000),
        # Connections end after an hour, so that clients spread over replicas that came later. Calls
        # in progress get ten minutes more.
        ("grpc.max_connection_age_ms", 3_600_000),
        ("grpc.max_connection_age_grace_ms", 600_000),
        # A client that vanished without a word is noticed.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]
