"""A server process, from opening its sockets to its exit code: uvicorn's server with our listeners,
and a shutdown that loses no request.
"""

import asyncio
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI

from sentiment_service import main
from sentiment_service.errors import ServiceError, UserError
from sentiment_service.observability import logs
from sentiment_service.requests.limits import Waiting
from sentiment_service.requests.service import Service, SideServer
from sentiment_service.server import process
from sentiment_service.server.arrivals import (
    ACCEPTING_SHARE,
    LOOK_S,
    QUIET_S,
    Arrivals,
    Listener,
    Quiet,
    Starts,
)
from sentiment_service.server.http_protocol import HttpProtocol
from sentiment_service.settings.credentials import Credentials, read_again
from sentiment_service.settings.settings import Settings
from sentiment_service.shared_memory import WorkerPhase

# Longer than load balancers keep idle connections (mostly 60 s): the side that sends requests must
# close first.
KEEP_ALIVE_S = 75
# The last share of drain-ms, in which requests that have no result yet get an error.
REFUSING_SHARE = 0.1
MAX_REFUSING_S = 1.0

# Answered requests leave nothing to the garbage collector, which looks at all that wait, for 0.1 to
# 0.3 s; by Python's own thresholds, whenever the number of objects has grown by 700.
COLLECTOR_THRESHOLDS = (100_000, 5, 10)

logger = logging.getLogger(__name__)


def run(settings: Settings, credentials: Credentials) -> int:
    """Serve until SIGTERM or SIGINT, then finish the accepted requests; returns the exit code."""
    hangup = process.hangups()
    with ExitStack() as sockets:
        sites = [sockets.enter_context(site) for site in process.bind_sites(settings)]
        return serve(main.create_app(settings, credentials), sites, hangup)


def serve(
    app: FastAPI,
    sites: Sequence[socket.socket],
    hangup: asyncio.Event,
    kind: "type[Server] | None" = None,
) -> int:
    """Have a server of this ``kind`` answer at the bound ``sites``.

    The second one, if there is one, is for the metrics. Returns the exit code: 1 if drain-ms ended
    before every accepted request had its result.
    """
    service: Service = app.state.service
    lifecycle = service.lifecycle
    # The models stay in memory, so the garbage collector need not scan them again and again.
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    apps = [app, main.create_metrics_app(service)]
    server = (kind or Server)(dict(zip(sites, apps, strict=False)), service, hangup)
    process.outside_the_event_loop(lifecycle)
    server.run()
    if lifecycle.results_lost:
        logger.error("drain-ms was over before every request had its result; some got 503")
    if lifecycle.computing:
        # A thread inside a batch cannot be interrupted, and the interpreter would abort at exit.
        logger.warning("the thread of a runner had not ended when drain-ms was over")
    if lifecycle.computing or service.models.loading or service.step_thread.busy:
        logs.close()
        os._exit(int(lifecycle.results_lost))
    return int(lifecycle.results_lost)


class Server(uvicorn.Server):
    """uvicorn's server with our listeners, and a shutdown that loses no request.

    ``sites`` maps each bound socket to its application. The first application's lifespan is the
    server's. When ``hangup`` is set, all models are loaded again.
    """

    arrivals: type[Arrivals] = Arrivals

    def __init__(
        self,
        sites: Mapping[socket.socket, FastAPI],
        service: Service,
        hangup: asyncio.Event,
        *,
        keep_alive_s: int = KEEP_ALIVE_S,
    ) -> None:
        self._apps = [*sites.values()]
        self._configs = {site: _config(app, keep_alive_s) for site, app in sites.items()}
        super().__init__(next(iter(self._configs.values())))
        self._service = service
        self._hangup = hangup
        self._tasks: list[asyncio.Task[None]] = []  # to the end of the event loop
        self._listeners: list[Listener] = []
        self._side_servers: list[SideServer] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(1)  # the log says why
        try:
            self._listen()
            makers = self._apps[0].state.side_servers
            self._side_servers = [make(self._service) for make in makers]
        except UserError:
            await self.lifespan.shutdown()
            raise
        for server in self._side_servers:
            await server.start()
        self._tell_ready(self._service.models.summary())
        self._tasks.append(asyncio.create_task(self._reload_at_hangups()))
        self.started = True

    def _tell_ready(self, models: str) -> None:
        process.announce(models, [*self._configs], self._service.settings)

    def _listen(self) -> None:
        starts = Starts(self._service.often_asked, self._service.settings.root_path)
        unread = Waiting(self._service.inflight.limit)
        tls = self._service.access.credentials.tls_context()
        for site, config in self._configs.items():
            if not config.loaded:  # the first one was loaded with its lifespan
                config.load()
            protocol = partial(
                HttpProtocol,
                config=config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                service=self._service,
                starts=starts,
                unread=unread,
            )
            self._listeners.append(Listener(site, protocol, self.arrivals, self._note_end, tls))
            tls = None  # the port of the metrics has none

    def _note_end(self) -> None:
        self._service.status.closed += 1

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        process.stop(self._service.lifecycle, sig)
        self._service.status.phase_number = WorkerPhase.STOPPING
        # uvicorn's own handler would raise the signal again after a graceful end.
        self.should_exit = True

    async def _reload_at_hangups(self) -> None:
        while await self._hangup.wait():
            # Those that come from here on cause one more reload together.
            self._hangup.clear()
            self._read_files()
            await asyncio.gather(*map(self._reload, self._service.models.classifiers))

    def _read_files(self) -> None:
        if read := read_again(self._service.settings):
            self.take(read)

    def take(self, credentials: Credentials) -> None:
        """Let these keys and this certificate be in force from now on."""
        self._service.access.credentials = credentials
        self._listeners[0].tls = credentials.tls_context()

    async def _reload(self, name: str) -> None:
        try:
            await self._service.worker.reload(self._service.models, name)
        except ServiceError:
            pass  # the log says why, or the service shuts down
        except Exception:
            logger.exception("%s could not be reloaded", name)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer accepted requests, refuse new ones, then close; all within drain-ms."""
        logger.info("shutting down")
        lifecycle = self._service.lifecycle
        lifecycle.stop()  # a signal may have done this already
        drain_s = self._service.settings.drain_ms / 1000
        stop_by = lifecycle.stop_by
        results_by = stop_by - min(MAX_REFUSING_S, REFUSING_SHARE * drain_s)
        draining = asyncio.create_task(self._service.models.drain(results_by))
        stopping = [asyncio.create_task(side.stop(stop_by)) for side in self._side_servers]
        since = asyncio.get_running_loop().time()
        await self._close_what_is_quiet(since, stop_by - ACCEPTING_SHARE * drain_s, results_by)
        for listener in self._listeners:
            await listener.close()
        lifecycle.results_lost = not await draining
        # The remaining tasks wait for their clients.
        tasks = self.server_state.tasks
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, stop_by - time.monotonic()))
        await self._close_what_is_quiet(since, 0.0, stop_by)  # when the last answers are read
        connections = self.server_state.connections
        if any(connection.transport.get_write_buffer_size() for connection in connections):
            lifecycle.results_lost = True
        await asyncio.gather(*stopping)
        await self.lifespan.shutdown()
        logger.info("stopped")

    async def _close_what_is_quiet(self, since: float, accept_until: float, until: float) -> None:
        """Close quiet connections; return when none is left and none can arrive, or at ``until``.

        The listeners close at ``accept_until`` at the latest. ``since`` is when the server began to
        stop, on the event loop's clock; the others are on that of ``time.monotonic``.
        """
        quiet, loop = Quiet(), asyncio.get_running_loop()
        connections = self.server_state.connections
        listeners = self._listeners
        while time.monotonic() < until and (connections or not all(one.ended for one in listeners)):
            quiet_s = quiet.seconds(self._arrived())
            if quiet_s >= QUIET_S or time.monotonic() >= accept_until:
                await self._accept_no_more()
            # While the process stands still, clients send what it has not read. So silence counts
            # until a time after which the sockets are read once more.
            now = loop.time()
            await asyncio.sleep(LOOK_S)
            for connection in list(connections):
                cast(HttpProtocol, connection).close_if_quiet(since, now)

    async def _accept_no_more(self) -> None:
        for listener in self._listeners:
            await listener.close()

    def _arrived(self) -> int:
        """A number that grows with each connection and each answer."""
        accepted = sum(listener.arrivals.accepted for listener in self._listeners)
        return accepted + self.server_state.total_requests


def _config(app: FastAPI, keep_alive_s: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="on",
        ws="none",
        log_config=None,
        log_level="warning",  # of uvicorn's own messages
        access_log=False,
        server_header=False,
        proxy_headers=False,  # an exchange reads X-Forwarded-For itself
        timeout_keep_alive=keep_alive_s,
    )
