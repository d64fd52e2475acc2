"""What is counted and logged of each request."""

import logging
from typing import Any

from starlette.types import Scope

from app.api.routing import UNMATCHED
from app.service import Service
from app.api.work import Work
from app.errors import ServiceError

# A client may send any word as its method, and each word would become a series in the metrics.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD = "other"
# Orchestrators, Prometheus and browsers ask for these all the time. If they succeed, they are
# logged at debug, and so is the path of AIP_HEALTH_ROUTE.
QUIET = frozenset(
    {
        *("/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"),
        *("/ping", "/metrics", "/web/{name}"),
        *("/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/ServerLive"),
        "/inference.GRPCInferenceService/ServerReady",
    }
)

access = logging.getLogger("access")


def method_label(method: str) -> str:
    """The method as metrics and log show it."""
    return method if method in METHODS else OTHER_METHOD


def is_logged(service: Service) -> bool:
    """Whether requests have a line each."""
    return service.settings.access_log == "on" and access.isEnabledFor(logging.INFO)


def log_request(
    service: Service,
    scope: Scope,
    trace: str | None,
    method: str,
    route: str,
    status: int,
    seconds: float,
) -> None:
    """Write the access line, without path and query: clients may have put a text there."""
    quiet = route in QUIET or route == service.health_route
    level = logging.DEBUG if quiet and status < 400 else logging.INFO
    if not access.isEnabledFor(level):
        return
    state = scope["state"]
    fields: dict[str, Any] = {"request_id": state["request_id"]}
    if trace:
        fields["trace_id"] = trace
    fields["client"] = (scope["client"] or ("",))[0]
    fields |= {"method": method, "route": route, "status": status}
    if code := state.get("code"):
        fields["code"] = code
    work: Work | None = state.get("work")
    if work is not None:
        fields |= {"model": work.model, "texts": work.texts, "tokens": work.tokens}
    fields["duration_ms"] = round(seconds * 1000, 2)
    if work is not None:
        for name, spent in work.stages.items():
            fields[f"{name}_ms"] = round(spent * 1000, 2)
    access.log(level, "request", extra={"fields": fields})


def note_refusal(service: Service, error: ServiceError, request_id: str, client: str) -> None:
    """Count and log the answer to bytes that are not a valid request."""
    service.metrics.observe_request(UNMATCHED, OTHER_METHOD, error.status, 0.0, None)
    if is_logged(service):
        fields: dict[str, Any] = {
            "request_id": request_id,
            "client": client,
            "method": OTHER_METHOD,
        }
        fields |= {"route": UNMATCHED, "status": error.status, "code": error.code}
        fields["reason"] = error.detail
        access.info("request", extra={"fields": fields})
