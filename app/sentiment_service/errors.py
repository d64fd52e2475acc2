"""The errors that users see: HTTP problems, and one-line errors of the commands."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Literal, get_args

PROBLEM = "application/problem+json"  # RFC 9457
Headers = list[tuple[bytes, bytes]]

# The seconds that a client is told to wait if nothing says how long it should.
RETRY_AFTER_S = 1.0

# What helps when a disk is full. Commands that write elsewhere put their own option in its place.
OTHER_DISK = "choose a directory on another disk"


class UserError(Exception):
    """A command failed. The user sees the message as one line, and the exit code is 1."""


class CannotContinue(UserError):
    """A command cannot go on from what an earlier run saved. The message says what must change."""


class NoMemory(UserError):
    """The memory of the device, or of the process, does not suffice to load a model."""


class DeviceLost(UserError):
    """The device that computes can do so only for a new process. The message says why."""


def forget_frames(error: BaseException | None) -> None:
    """Free what the error's frames hold, such as the body of the request that it answers.

    Frames often hold the error, too. Then only the garbage collector would free them, and late.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C led to the error. Packages written in C make such errors while they load."""
    seen: list[BaseException] = []  # causes can be a circle
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return any(isinstance(one, KeyboardInterrupt) for one in seen)


def first_line(error: BaseException) -> str:
    """The first line of another library's message, or the error's ``repr`` where it has none.

    Of the system's errors, it is what happened, without number and file.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next(iter(str(error).strip().splitlines()), repr(error))


def system_error(error: OSError) -> str:
    """What the system refused, as one line: the file, if the error names one, and why."""
    return f"{error.filename}: {first_line(error)}" if error.filename else first_line(error)


# Pydantic's words, and ours.
_PLAIN = {
    "Input should be": "must be",
    "a valid integer": "a whole number",
    "a valid ": "a ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}


def plain_words(message: str) -> str:
    """Pydantic's message about a value in the words that users read."""
    message = message.partition(", unable to ")[0]
    for pydantic, ours in _PLAIN.items():
        message = message.replace(pydantic, ours)
    return message


class ServiceError(Exception):
    """A request, or one text of it, has no result.

    Each subclass has a ``status``, ``code`` and ``title``. The client gets these, and a ``detail``
    that says what was wrong and what is accepted.
    """

    status: ClassVar[int]
    code: ClassVar[str]
    title: ClassVar[str]
    # Whether the outcome of a text can be this error. If so, metrics count such texts.
    ends_texts: ClassVar[bool] = True
    # The reason under which metrics count the request as not admitted; None: it is not counted.
    rejection: str | None = None
    # The number of seconds after which the client should try again.
    retry_after_s: float | None = None

    def __init__(self, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    def again(self, detail: str = "", kind: "type[ServiceError] | None" = None) -> "ServiceError":
        """A new error with what this one says, or with another detail, or of another kind.

        Other requests may share this one; and one that was raised holds the frames of its stack.
        """
        kind, detail = kind or type(self), detail or self.detail
        other = kind.__new__(kind, detail)
        vars(other).update(vars(self), detail=detail)
        return other

    @classmethod
    def document(cls, detail: str, request_id: str) -> dict[str, str | int]:
        """What the answer to a request with this kind of error says."""
        return {
            "type": f"urn:sentiment:{cls.code}",
            "title": cls.title,
            "status": cls.status,
            "detail": detail,
            "code": cls.code,
            "error": detail,
            "request_id": request_id,
        }

    @property
    def outcome(self) -> str:
        """What metrics count it as."""
        return self.code

    def headers(self) -> dict[str, str]:
        if self.retry_after_s is None:
            return {}
        return {"retry-after": str(max(1, math.ceil(self.retry_after_s)))}

    def answer(
        self, request_id: str, media_type: str = PROBLEM, /, **members: Any
    ) -> tuple[Headers, bytes]:
        """Headers and body of its answer. ``members`` are the fields that a protocol adds."""
        document = {**self.document(self.detail, request_id), **members}
        body = json.dumps(document).encode()
        headers = self.headers() | {"content-length": str(len(body)), "content-type": media_type}
        return [(name.encode(), value.encode()) for name, value in headers.items()], body

    def last_answer(self, request_id: str, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Its answer in HTTP/1.1, which says that the connection closes."""
        headers, body = self.answer(request_id)
        own = [(b"x-request-id", request_id.encode()), (b"connection", b"close")]
        lines = [b"%b: %b\r\n" % header for header in (*default_headers, *headers, *own)]
        start = f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\n".encode()
        return b"".join([start, *lines, b"\r\n", body])


class BadRequest(ServiceError):
    """The client sent something that is not an HTTP request."""

    status, code, title = 400, "bad_request", "Bad request"
    ends_texts = False


class Unauthorized(ServiceError):
    status, code, title = 401, "unauthorized", "Unauthorized"
    ends_texts = False

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "www-authenticate": "Bearer"}


class NotFound(ServiceError):
    status, code, title = 404, "not_found", "Not found"
    ends_texts = False


class ModelNotFound(ServiceError):
    status, code, title = 404, "model_not_found", "Model not found"
    ends_texts = False


class MethodNotAllowed(ServiceError):
    """The path has other methods, which are ``allowed``."""

    status, code, title = 405, "method_not_allowed", "Method not allowed"
    ends_texts = False

    def __init__(self, detail: str, *, allowed: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.allowed = allowed

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "allow": ", ".join(self.allowed)}


class PayloadTooLarge(ServiceError):
    status, code, title = 413, "payload_too_large", "Request body too large"


class UnsupportedMediaType(ServiceError):
    status, code, title = 415, "unsupported_media_type", "Unsupported media type"
    ends_texts = False


class InvalidRequest(ServiceError):
    status, code, title = 422, "invalid_request", "Invalid request"


class UnknownField(InvalidRequest):
    """The body has a field that its form does not have. ``body`` is what was parsed."""

    def __init__(self, detail: str, body: Mapping[str, Any]) -> None:
        super().__init__(detail)
        self.body = body


class EmptyText(ServiceError):
    status, code, title = 422, "empty_text", "Empty text"


class TextTooLong(ServiceError):
    status, code, title = 422, "text_too_long", "Text too long"


class InvalidBundle(ServiceError):
    status, code, title = 422, "invalid_bundle", "The bundle cannot be served"
    ends_texts = False


class TooManyTexts(ServiceError):
    status, code, title = 422, "too_many_texts", "Too many texts"


class HeadersTooLarge(ServiceError):
    status, code, title = 431, "headers_too_large", "Request headers too large"
    ends_texts = False


CLIENT_DEADLINE = "client_deadline"
Full = Literal["queue_full", "deadline", "inflight_bytes", "client_deadline"]


class Overloaded(ServiceError):
    """The service cannot take the request now.

    ``reason`` is ``queue_full``, ``deadline`` (the wait would be longer), ``client_deadline`` (only
    because the client's own is shorter) or ``inflight_bytes`` (bodies take too much memory).
    """

    status, code, title = 429, "overloaded", "Overloaded"
    retry_after_s = RETRY_AFTER_S

    def __init__(self, detail: str, *, reason: Full, retry_after_s: float | None = None) -> None:
        super().__init__(detail, retry_after_s=retry_after_s)
        self.rejection = reason


class RateLimited(ServiceError):
    status, code, title = 429, "rate_limited", "Too many requests"
    ends_texts = False


class InferenceFailed(ServiceError):
    status, code, title = 500, "inference_failed", "Inference failed"


class OutOfMemory(ServiceError):
    """The memory of the device, or of the process, did not suffice for a text alone."""

    status, code, title = 507, "out_of_memory", "Out of memory"


class NotReady(ServiceError):
    status, code, title = 503, "not_ready", "Not ready"
    rejection = code
    retry_after_s = RETRY_AFTER_S


class ShuttingDown(ServiceError):
    status, code, title = 503, "shutting_down", "Shutting down"
    rejection = code
    retry_after_s = RETRY_AFTER_S

    def __init__(self, detail: str = "the service is shutting down") -> None:
        super().__init__(detail)


class DeadlineExceeded(ServiceError):
    """There is no answer in time.

    ``of_client``: because of the client. Its own deadline is shorter than the service's, or what
    it sends took too long. Metrics count it apart, so that no client can page the operator.
    """

    status, code, title = 504, "deadline_exceeded", "Deadline exceeded"

    def __init__(self, detail: str, *, of_client: bool = False) -> None:
        super().__init__(detail)
        self.of_client = of_client

    @property
    def outcome(self) -> str:
        return CLIENT_DEADLINE if self.of_client else self.code


class ClientDisconnected(ServiceError):
    """The client left before its answer. The status, as in nginx, appears only in metrics."""

    status, code, title = 499, "client_disconnected", "Client disconnected"


# What can become of a text, and why a request may not be admitted.
TEXT_ERRORS = [kind.code for kind in ServiceError.__subclasses__() if kind.ends_texts]
OUTCOMES = ("ok", *TEXT_ERRORS, CLIENT_DEADLINE)
REJECTIONS = (*get_args(Full), NotReady.code, ShuttingDown.code)
# The errors of a request that classifies, and the status and outcome of each way in which it ends.
CLASSIFY_ERRORS = (
    Unauthorized,
    ModelNotFound,
    PayloadTooLarge,
    UnsupportedMediaType,
    InvalidRequest,
    EmptyText,
    TextTooLong,
    TooManyTexts,
    Overloaded,
    RateLimited,
    InferenceFailed,
    OutOfMemory,
    NotReady,
    ShuttingDown,
    DeadlineExceeded,
)
ANSWERS = [
    (200, "ok"),
    *((error.status, error.code) for error in (ClientDisconnected, *CLASSIFY_ERRORS)),
    (DeadlineExceeded.status, CLIENT_DEADLINE),
]
