"""Answers to bytes that are not a valid request: the protocol sends them, without routing."""

from collections.abc import Iterable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.errors import BadRequest, NotReady, ServiceError
from app.exchange import OTHER_METHOD, UNMATCHED
from app.observability.logs import log_request
from app.observability.observers import count_request
from app.problems import problem
from app.service import Service


def refusal(cause: BaseException | None) -> ServiceError:
    """The error to answer when the parser stopped because of ``cause``."""
    if isinstance(cause, ServiceError):
        return cause
    if isinstance(cause, MemoryError):
        return NotReady("there is no memory for this request")
    return BadRequest("the request is not valid HTTP/1.1")


def answer(
    error: ServiceError, request_id: str, default_headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """The error as an HTTP response that says that the connection closes.

    ``default_headers`` are those of every answer, such as the date.
    """
    response = problem(error, request_id)
    own = [(b"x-request-id", request_id.encode()), (b"connection", b"close")]
    headers = [*default_headers, *response.raw_headers, *own]
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return b"".join([STATUS_LINE[response.status_code], *lines, b"\r\n", bytes(response.body)])


def note(service: Service, error: ServiceError, request_id: str, client: str) -> None:
    """Count and log the answer to bytes that are not a valid request."""
    count_request(service.metrics, OTHER_METHOD, UNMATCHED, error.status, seconds=0.0)
    if service.logs_requests:
        log_request(
            {
                "request_id": request_id,
                "client": client,
                "method": OTHER_METHOD,
                "route": UNMATCHED,
                "status": error.status,
                "code": error.code,
                "reason": error.detail,
            }
        )
