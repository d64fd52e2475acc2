"""The access log: a line for each request, without its path and query, which may hold a text."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from opentelemetry import trace

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

# W3C Trace Context, version 00: the trace id, the id of the caller's span, and flags.
TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

access = logging.getLogger("access")


def method_label(method: str) -> str:
    """The method as metrics and log show it."""
    return method if method in METHODS else OTHER_METHOD


def is_on(setting: str) -> bool:
    """Whether requests have a line each, by the setting and by the level of the log."""
    return setting == "on" and access.isEnabledFor(logging.INFO)


def log_request(fields: dict[str, Any], *, quiet: bool = False) -> None:
    """Write a request's line; at debug if it is one that nobody looks for."""
    access.log(logging.DEBUG if quiet else logging.INFO, "request", extra={"fields": fields})


def trace_id(span: trace.Span | None, headers: Mapping[bytes, bytes]) -> str | None:
    """The id of the request's trace, ours or its caller's, as 32 hexadecimal digits, or None."""
    if span is not None and span.is_recording():
        return f"{span.get_span_context().trace_id:032x}"
    caller = TRACEPARENT.fullmatch(headers.get(b"traceparent", b"").decode("latin-1"))
    return caller[1] if caller else None
