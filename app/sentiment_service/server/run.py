"""Runs a server process, from opening its sockets to its exit code."""

import asyncio
import gc
import logging
import os
import socket
from contextlib import ExitStack

from sentiment_service import main
from sentiment_service.config.credentials import Credentials
from sentiment_service.config.settings import Settings
from sentiment_service.observability import logs
from sentiment_service.requests.service import Service
from sentiment_service.server import signals
from sentiment_service.server.addresses import bind_sites
from sentiment_service.server.server import Server
from sentiment_service.server.workers.assignment import Assignment, take_share
from sentiment_service.shared_memory.board import Board

# Answered requests and closed connections leave nothing to the garbage collector. It looks at all
# requests that wait, for 0.1 to 0.3 s each time, and with Python's own thresholds (700, 10, 10)
# whenever the number of objects has grown by 700.
COLLECTOR_THRESHOLDS = (100_000, 5, 10)

logger = logging.getLogger(__name__)


def run(settings: Settings, credentials: Credentials, assignment: Assignment | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then finish the accepted requests.

    With an ``assignment``, this process is one of the workers of a service. Returns the exit code:
    1 if drain-ms ended before every accepted request had its result.

    Raises:
        UserError: an address or a bundle cannot be used.
    """
    hangup = asyncio.Event()
    signals.note_hangups(hangup)
    with ExitStack() as sockets:
        if assignment is None:
            board, cpus, gpu_workers = None, 0.0, 1
            sites = bind_sites(settings)
        else:
            board = Board.open(assignment.board, assignment.workers, assignment.number)
            sites = [socket.socket(fileno=site) for site in assignment.sites]
            settings, cpus, gpu_workers = take_share(
                settings, assignment.number, assignment.workers
            )
        for site in sites:
            sockets.enter_context(site)
        app = main.create_app(
            settings, credentials, board=board, cpus=cpus, gpu_workers=gpu_workers
        )
        service: Service = app.state.service
        lifecycle = service.lifecycle
        apps = [app, main.create_metrics_app(service)]
        # The models stay in memory, so the garbage collector need not scan them again and again.
        gc.freeze()
        gc.set_threshold(*COLLECTOR_THRESHOLDS)
        server = Server(dict(zip(sites, apps, strict=False)), service, hangup, assignment)
        signals.outside_the_event_loop(lifecycle)
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
