"""Every failure the outside world can see: HTTP problems and one-line command errors."""

from typing import ClassVar, Literal, get_args


class UserError(Exception):
    """A command cannot go on; the message is the one line shown to its user (exit code 1)."""


class ServiceError(Exception):
    """A request, or one text of it, cannot be answered.

    Each subclass is one row of the error table: ``status`` and ``code`` are what a client
    sees, ``detail`` says what was wrong and what is accepted.
    """

    status: ClassVar[int]
    code: ClassVar[str]
    title: ClassVar[str]
    # Whether texts can end with it; it is counted for each of them then.
    ends_texts: ClassVar[bool] = True
    # As what the request counts among those that were not admitted.
    rejection: str | None = None

    def __init__(self, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s


class BadRequest(ServiceError):
    """What arrived is not HTTP."""

    status, code, title = 400, "bad_request", "Bad request"
    ends_texts = False


class Unauthorized(ServiceError):
    status, code, title = 401, "unauthorized", "Unauthorized"
    ends_texts = False


class NotFound(ServiceError):
    status, code, title = 404, "not_found", "Not found"
    ends_texts = False


class ModelNotFound(ServiceError):
    status, code, title = 404, "model_not_found", "Model not found"
    ends_texts = False


class MethodNotAllowed(ServiceError):
    status, code, title = 405, "method_not_allowed", "Method not allowed"
    ends_texts = False


class PayloadTooLarge(ServiceError):
    status, code, title = 413, "payload_too_large", "Request body too large"


class UnsupportedMediaType(ServiceError):
    status, code, title = 415, "unsupported_media_type", "Unsupported media type"
    ends_texts = False


class InvalidRequest(ServiceError):
    status, code, title = 422, "invalid_request", "Invalid request"


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


Full = Literal["queue_full", "deadline", "inflight_bytes"]


class Overloaded(ServiceError):
    """``reason``: the queue is full, the wait would be longer than the deadline, bodies take too
    much memory."""

    status, code, title = 429, "overloaded", "Overloaded"

    def __init__(self, detail: str, *, reason: Full, retry_after_s: float) -> None:
        super().__init__(detail, retry_after_s=retry_after_s)
        self.rejection = reason


class RateLimited(ServiceError):
    status, code, title = 429, "rate_limited", "Too many requests"
    ends_texts = False


class InferenceFailed(ServiceError):
    status, code, title = 500, "inference_failed", "Inference failed"


class NotReady(ServiceError):
    status, code, title = 503, "not_ready", "Not ready"
    rejection = code


class ShuttingDown(ServiceError):
    status, code, title = 503, "shutting_down", "Shutting down"
    rejection = code

    def __init__(
        self, detail: str = "the service is shutting down", *, retry_after_s: float = 1.0
    ) -> None:
        super().__init__(detail, retry_after_s=retry_after_s)


class DeadlineExceeded(ServiceError):
    status, code, title = 504, "deadline_exceeded", "Deadline exceeded"


class ClientDisconnected(ServiceError):
    """Nobody is left to read the answer; the status, nginx's, shows in metrics only."""

    status, code, title = 499, "client_disconnected", "Client disconnected"


# What can become of a text, and why a request may not be admitted.
OUTCOMES = ("ok", *(kind.code for kind in ServiceError.__subclasses__() if kind.ends_texts))
REJECTIONS = (*get_args(Full), NotReady.code, ShuttingDown.code)
