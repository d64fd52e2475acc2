"""Registers gRPC: its server, and which of its methods are probes or open."""

from collections.abc import Sequence

from sentiment_service.requests.limits import Paths, PathSet
from sentiment_service.requests.service import Adapter
from sentiment_service.settings.settings import Settings

PATHS = Paths(
    probes=PathSet(
        {
            *("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"),
            *(f"/inference.GRPCInferenceService/Server{what}" for what in ("Live", "Ready")),
        }
    ),
    open=PathSet({"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"}),
)


def _configured(settings: Settings, others: Sequence[Adapter]) -> Adapter:
    """With a server, if a port is set. Raises ModuleNotFoundError if the extra is missing."""
    if not settings.grpc_port:
        return Adapter(paths=PATHS)
    from sentiment_service.adapters.grpc.server import GrpcServer

    return Adapter(paths=PATHS, server=GrpcServer)


ADAPTER = Adapter(configured=_configured)
