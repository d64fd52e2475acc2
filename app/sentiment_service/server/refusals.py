"""Answers to bytes that are not a valid request: the protocol sends them, without routing."""

from collections.abc import Iterable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from sentiment_service.errors import ServiceError
from sentiment_service.observability.logs import log_request
from sentiment_service.observability.observers import count_request
from sentiment_service.requests.exchange import OTHER_METHOD, UNMATCHED, request_id
from sentiment_service.requests.problems import problem
from sentiment_service.requests.service import Service


def refuse(
    service: Service,
    error: ServiceError,
    client: str,
    default_headers: Iterable[tuple[bytes, bytes]],
) -> bytes:
    """The error as an HTTP response that says that the connection closes; count and log it.

    ``client`` is its address. ``default_headers`` are those of every answer, such as the date.
    """
    own_id = request_id()
    count_request(service.metrics, OTHER_METHOD, UNMATCHED, error.status, seconds=0.0)
    if service.logs_requests:
        log_request(
            {
                "request_id": own_id,
                "client": client,
                "method": OTHER_METHOD,
                "route": UNMATCHED,
                "status": error.status,
                "code": error.code,
                "reason": error.detail,
            }
        )
    response = problem(error, own_id)
    own = [(b"x-request-id", own_id.encode()), (b"connection", b"close")]
    headers = [*default_headers, *response.raw_headers, *own]
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return b"".join([STATUS_LINE[response.status_code], *lines, b"\r\n", bytes(response.body)])
