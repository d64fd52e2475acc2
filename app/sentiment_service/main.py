"""Puts the service together: its settings, models, adapters and HTTP application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import reduce
from importlib import import_module
from operator import or_

from fastapi import FastAPI

from sentiment_service.engine.loading import load_all
from sentiment_service.engine.model.bundle import bundles_to_use
from sentiment_service.http import operations
from sentiment_service.http.application import OWN_PATHS, Application, all_routes
from sentiment_service.observability.observers import EXPORTER
from sentiment_service.requests.limits import Paths, PathSet
from sentiment_service.requests.service import Adapter, Service, Worker
from sentiment_service.settings.credentials import Credentials
from sentiment_service.settings.settings import Settings

# The modules whose ``ADAPTER`` is served. Without its line here, an adapter is not served, and
# nothing else names it.
ADAPTERS = (
    "sentiment_service.adapters.explain",
    "sentiment_service.adapters.huggingface",
    "sentiment_service.adapters.open_inference",
    "sentiment_service.adapters.stream",
    "sentiment_service.adapters.tokenize",
    "sentiment_service.adapters.v1",
    # The last: some of its paths are the user's, who gets an error if one is taken.
    "sentiment_service.adapters.clouds",
    "sentiment_service.adapters.grpc",
)


def create_app(
    settings: Settings,
    credentials: Credentials | None = None,
    *,
    worker: Worker | None = None,
) -> FastAPI:
    """Load and warm up the models, and return the application that serves them.

    It answers requests only while its lifespan is active. ``credentials`` are read unless given.
    """
    known: list[Adapter] = [import_module(name).ADAPTER for name in ADAPTERS]
    adapters = [one.configured(settings, known) if one.configured else one for one in known]
    own = OWN_PATHS | Paths(open=PathSet({settings.root_path}))
    paths = reduce(or_, [adapter.paths for adapter in adapters], own)
    service = Service(settings, paths, credentials=credentials, worker=worker)
    routes = all_routes(service, adapters)
    if settings.otlp_endpoint:
        import_module(EXPORTER)
    bundles = bundles_to_use(settings.model)
    loaded = load_all(bundles, service.config, service.worker.cpus)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # The first start uses the models that are loaded already. A restart loads them again.
        models = loaded.copy() or load_all(bundles, service.config, service.worker.cpus)
        loaded.clear()  # a reference here would keep a model in memory after its reload
        async with service.running(models):
            models.clear()
            yield

    app = Application(service, routes, lifespan=lifespan)
    app.state.side_servers = [adapter.server for adapter in adapters if adapter.server]
    return app


def create_metrics_app(service: Service) -> FastAPI:
    """An application that serves only the service's metrics, for a separate port."""
    return Application(service, operations.metrics_router.routes)
