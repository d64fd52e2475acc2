"""A server process: from its sockets to the last answer after SIGTERM."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from app import logs, main
from app.api.middleware.access import IPV4_MAPPED
from app.api.middleware.observation import note_refusal
from app.api.service import Service
from app.errors import ServiceError, UserError
from app.server.http_protocol import QUIET_S, HttpProtocol
from app.server.listener import Listener, bind
from app.server.turns import Turns
from app.settings import Settings

# Longer than load balancers keep theirs (60 s mostly): the side that sends must close first.
KEEP_ALIVE_S = 75
# The part of drain-ms after which the listeners close, even if clients come again and again.
ACCEPTING_SHARE = 0.5
# The end of drain-ms, in which those that have no result by then are told.
FAREWELL_SHARE = 0.1
MAX_FAREWELL_S = 1.0
LOOK_S = 0.05  # between two looks at the connections

# What is overridden of uvicorn's server; a test compares.
OVERRIDDEN = {
    "startup": "our listeners, which accept many connections in a turn",
    "handle_exit": "the service knows of a signal at once; the exit code is ours",
    "on_tick": "SIGHUP reloads",
    "shutdown": "connections end after their answers, within drain-ms",
}

logger = logging.getLogger(__name__)


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, then finish what was begun.

    Returns the exit code: 1 when drain-ms was over before each accepted request had its result.

    Raises:
        UserError: an address or a bundle cannot be used.
    """
    hangups: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: hangups.append(number))
    with ExitStack() as sockets:
        ports = [settings.port, *([settings.metrics_port] if settings.metrics_port else [])]
        listeners = [sockets.enter_context(bind(settings.host, port)) for port in ports]
        app = main.create_app(settings)
        service: Service = app.state.service
        lifecycle = service.lifecycle
        apps = [app, main.create_metrics_app(service)]
        sites = dict(zip(listeners, apps, strict=False))
        # The models stay: the garbage collector need not look at all that again and again.
        gc.freeze()
        server = Server(sites, service, hangups)
        # While uvicorn does not handle it: before its loop, and when that has ended.
        signal.signal(
            signal.SIGTERM, lambda number, _: lifecycle.stopping or sys.exit(128 + number)
        )
        server.run()
    if lifecycle.results_lost:
        logger.error("drain-ms was over before every request had its result; some got 503")
    if lifecycle.computing:
        # Its thread cannot be interrupted, and the interpreter would abort at its end.
        logger.error("a batch was still running; its answer is lost")
    if lifecycle.computing or service.models.loading:
        logs.close()
        os._exit(int(lifecycle.results_lost))
    return int(lifecycle.results_lost)


class Server(uvicorn.Server):
    """uvicorn's server with our listeners, and an end that loses nothing.

    ``sites`` has the application of each bound socket. The first one's lifespan is the server's.
    A signal that is added to ``hangups`` has all models loaded again.
    """

    def __init__(
        self,
        sites: Mapping[socket.socket, FastAPI],
        service: Service,
        hangups: list[int],
        *,
        keep_alive_s: int = KEEP_ALIVE_S,
    ) -> None:
        self._configs = {site: _config(app, keep_alive_s) for site, app in sites.items()}
        super().__init__(next(iter(self._configs.values())))
        self._service = service
        self._hangups = hangups
        self._reloading: asyncio.Future[list[None]] | None = None
        self._listeners: list[Listener] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(1)  # the log says why
        turns = Turns(asyncio.get_running_loop())
        for site, config in self._configs.items():
            if not config.loaded:  # the first is, with its lifespan
                config.load()
            protocol = partial(
                HttpProtocol,
                config=config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                max_header_bytes=self._service.settings.max_header_bytes,
                deadline_ms=self._service.settings.deadline_ms,
                turns=turns,
                on_refusal=partial(note_refusal, self._service),
            )
            try:
                self._listeners.append(Listener(site, protocol))
            except UserError:
                await self.lifespan.shutdown()
                raise
        host, port = next(iter(self._configs)).getsockname()[:2]
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        logger.info("serving %s at http://%s", self._service.models.summary(), where)
        self.started = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal; a second Ctrl-C ends the process as it is."""
        if self.should_exit and sig == signal.SIGINT:
            # A runner inside a native call cannot be interrupted, only left behind.
            os._exit(128 + sig)
        self._service.lifecycle.stop()
        # Not uvicorn's own handler: it raises the signal again after a graceful end, and the
        # exit code would tell of a failure.
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        # However many hangups came meanwhile, what lies there now is loaded once.
        if self._hangups and (self._reloading is None or self._reloading.done()):
            self._hangups.clear()
            self._reloading = asyncio.gather(*map(self._reload, self._service.models.classifiers))
        return await super().on_tick(counter)

    async def _reload(self, name: str) -> None:
        try:
            await self._service.models.reload(name)
        except ServiceError:
            pass  # the log says why, or the service shuts down
        except Exception:
            logger.exception("%s was not loaded again", name)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was begun and refuse what is new, then close; within drain-ms."""
        logger.info("shutting down")
        lifecycle = self._service.lifecycle
        lifecycle.stop()  # or it was by a signal
        drain_s = self._service.settings.drain_ms / 1000
        stop_by = lifecycle.stop_by
        results_by = stop_by - min(MAX_FAREWELL_S, FAREWELL_SHARE * drain_s)
        draining = asyncio.create_task(self._service.models.drain(results_by))
        await self._close_what_is_quiet(stop_by - ACCEPTING_SHARE * drain_s, results_by)
        for listener in self._listeners:
            await listener.close()
        lifecycle.results_lost = not await draining
        # What is left waits for its client: for the rest of a body, or to read an answer.
        tasks = self.server_state.tasks
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, stop_by - time.monotonic()))
        await self._flush(stop_by)
        await self.lifespan.shutdown()
        logger.info("stopped")

    async def _close_what_is_quiet(self, accept_until: float, until: float) -> None:
        """Return when no connection is left, or at ``until``, on the clock ``time.monotonic``."""
        loop = asyncio.get_running_loop()
        quiet_since = loop.time()
        heard = -1
        listening = True
        connections = self.server_state.connections
        while (connections or listening) and time.monotonic() < until:
            before, heard = heard, self._heard()
            if heard != before:
                quiet_since = loop.time()
            quiet_s = loop.time() - quiet_since
            if listening and (quiet_s >= QUIET_S or time.monotonic() >= accept_until):
                listening = False
                for listener in self._listeners:
                    await listener.close()
            for connection in list(connections):
                connection.shutdown()
            await asyncio.sleep(LOOK_S)

    async def _flush(self, until: float) -> None:
        """Have the last answers sent, and read."""
        connections = self.server_state.connections
        while connections and time.monotonic() < until:
            for connection in list(connections):
                connection.shutdown()
            await asyncio.sleep(LOOK_S)
        if any(connection.transport.get_write_buffer_size() for connection in connections):
            self._service.lifecycle.results_lost = True

    def _heard(self) -> int:
        """Grows with each connection and each answer."""
        accepted = sum(listener.accepted for listener in self._listeners)
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
        # Otherwise whoever asks from this host could say that he is somebody else.
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
        # Written as HttpProtocol gives the addresses of connections.
        forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", "").replace(IPV4_MAPPED, ""),
        timeout_keep_alive=keep_alive_s,
    )
