"""What is counted and logged of each request."""

import logging
import re
from typing import Any

from starlette.types import Scope

from app.api.routing import UNMATCHED
from app.api.service import Service
from app.errors import ServiceError

# A client may send any word as its method, and each word would become a series in the metrics.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD = "other"
STAGE = re.compile(rb"(\w+);dur=([0-9.]+)")  # in the header server-timing

access = logging.getLogger("access")


def method_label(method: str) -> str:
    """The method as metrics and log show it."""
    return method if method in METHODS else OTHER_METHOD


def is_logged(service: Service) -> bool:
    """Whether requests have a line each."""
    return service.settings.access_log == "on" and access.isEnabledFor(logging.INFO)


def log_request(
    scope: Scope,
    trace: str | None,
    method: str,
    route: str,
    status: int,
    seconds: float,
    stages: bytes,
) -> None:
    """Write the access line, without path and query: clients may have put a text there."""
    fields: dict[str, Any] = {"request_id": scope["state"]["request_id"]}
    if trace:
        fields["trace_id"] = trace
    fields["client"] = (scope["client"] or ("",))[0]
    fields |= {"method": method, "route": route, "status": status}
    fields["duration_ms"] = round(seconds * 1000, 2)
    for name, milliseconds in STAGE.findall(stages):
        fields[f"{name.decode()}_ms"] = float(milliseconds)
    access.info("request", extra={"fields": fields})


def note_refusal(service: Service, error: ServiceError, request_id: str, client: str) -> None:
    """Count and log the answer to bytes that are not a valid request."""
    service.metrics.observe_request(UNMATCHED, OTHER_METHOD, error.status, 0.0, None)
    if is_logged(service):
        fields: dict[str, Any] = {
            "request_id": request_id,
            "client": client,
            "method": OTHER_METHOD,
        }
        fields |= {"route": UNMATCHED, "status": error.status, "reason": error.detail}
        access.info("request", extra={"fields": fields})
