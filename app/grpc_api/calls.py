"""What every gRPC call passes: access, limits, request id, metrics, traces, log and errors.

They are the same as for HTTP, and the same objects: a rate limit counts both.
"""

import asyncio
import math
import time
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote

import grpc
from opentelemetry.context import attach, detach
from opentelemetry.trace import set_span_in_context

from app.api.middleware import identity
from app.api.middleware.access import OPEN, plain_address
from app.api.middleware.observation import is_logged, log_request
from app.api.middleware.request import last_resort
from app.api.routing import UNMATCHED
from app.api.service import Service
from app.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    MethodNotAllowed,
    ServiceError,
    ShuttingDown,
)
from app.grpc_api.aio_server import UNKNOWN
from app.grpc_api.call import Answers, Call, Context
from app.grpc_api.limits import CallLimits
from app.grpc_api.messages import METHODS
from app.observability.traces import trace_id

GRPC = "GRPC"  # in the place of HTTP's method, in metrics and log
# The status code of an error, by its HTTP status.
CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,  # as gRPC itself answers
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
# Their metric series exist before the first call, as those of HTTP's routes that classify.
CLASSIFYING = (
    "/inference.GRPCInferenceService/ModelInfer",
    "/tei.v1.Predict/Predict",
    "/tei.v1.Predict/PredictStream",
)


class Calls:
    """gRPC's handler of all calls of a server, those of unknown methods included.

    ``answers`` maps the paths of methods such as /tei.v1.Info/Info to what answers them.
    """

    def __init__(self, service: Service, answers: Answers) -> None:
        self._service = service
        self._answers = answers
        self.limits = CallLimits(service)
        self._logs = is_logged(service)
        for path in CLASSIFYING:
            for status in {200, *CODES} - {MethodNotAllowed.status}:
                service.metrics.expect_request(path, GRPC, status)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """The handler of each method by its path, and of all others; they get bytes.

        All calls are handled as streams. So the handler begins before the message has arrived, and
        a call without a key is refused before its message is read.
        """
        return {path: self._handler(path) for path in (*self._answers, UNKNOWN)}

    def _handler(self, path: str) -> grpc.RpcMethodHandler:
        async def handle(requests: object, context: Context) -> None:
            await self._handle(path, context)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _handle(self, path: str, context: Context) -> None:
        service, metrics, tracer = self._service, self._service.metrics, self._service.tracer
        scope = _scope(path, context)
        scope["state"]["logged"] = self._logs
        headers = dict(scope["headers"])
        request_id = scope["state"]["request_id"]
        route = path if path in self._answers else UNMATCHED
        span = tracer.request(scope, GRPC) if tracer else None
        token = attach(set_span_in_context(span)) if span else None
        metrics.requests_in_flight += 1
        self.limits.calls += 1
        started = time.perf_counter()
        failure: ServiceError | None = None
        call: Call | None = None
        try:
            service.access.check(scope)
            if path not in OPEN:
                self.limits.check()
            if route == UNMATCHED:
                raise MethodNotAllowed("no gRPC method has this name")
            asked = identity.deadline(scope, headers, longest_ms=service.settings.deadline_ms)
            left_s = context.time_remaining()
            ends = math.inf if left_s is None else asyncio.get_running_loop().time() + left_s
            call = Call(
                service,
                METHODS[path],
                scope,
                context,
                self.limits,
                deadline=min(asked, ends),
                ends=ends,
            )
            await self._answer(call, context)
        except (Exception, asyncio.CancelledError) as error:
            failure = self._failure(error, context, request_id)
            scope["state"]["code"] = failure.code
            context.set_code(CODES[failure.status])
            context.set_details(failure.detail)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            timing = call.timing if call else ""
            context.set_trailing_metadata(_trailing(request_id, failure, timing))
            seconds = time.perf_counter() - started
            metrics.requests_in_flight -= 1
            self.limits.calls -= 1
            status = failure.status if failure else 200
            trace = trace_id(span, headers)
            metrics.observe_request(route, GRPC, status, seconds, trace)
            if self._logs:
                log_request(service, scope, trace, GRPC, route, status, seconds)
            if tracer and span and token:
                detach(token)
                tracer.end_request(span, method=GRPC, route=route, status=status)

    async def _answer(self, call: Call, context: Context) -> None:
        answer: Any = self._answers[call.method.path]
        if call.method.streams:
            async with aclosing(answer(call)) as responses:
                async for response in responses:
                    await context.write(response.SerializeToString())
            return
        received = await call.read()
        try:
            response = await answer(call, received.message)
        finally:
            received.release()
        await context.write(response.SerializeToString())

    def _failure(self, error: BaseException, context: Context, request_id: str) -> ServiceError:
        if isinstance(error, ServiceError):
            return error
        if not isinstance(error, asyncio.CancelledError):
            return last_resort(error, request_id)
        if self._service.lifecycle.stopping:
            return ShuttingDown("the service shut down before the answer")
        left_s = context.time_remaining()
        if left_s is not None and left_s <= 0:
            return DeadlineExceeded("the call's own deadline passed before its answer")
        return ClientDisconnected("the client cancelled the call before its answer")


def _scope(path: str, context: Context) -> dict[str, Any]:
    """The call as ASGI would describe it: over HTTP/2, it is a POST to its method's path."""
    headers = [
        (name.encode(), value.encode() if isinstance(value, str) else value)
        for name, value in context.invocation_metadata() or ()
    ]
    # Such as ipv4:127.0.0.1:5000 or ipv6:%5B::1%5D:5000
    host, _, port = unquote(context.peer()).partition(":")[2].rpartition(":")
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": headers,
        "client": (plain_address(host.strip("[]")), int(port) if port.isdecimal() else 0),
        "state": {"request_id": identity.request_id(dict(headers))},
    }


def _trailing(
    request_id: str, failure: ServiceError | None, timing: str
) -> tuple[tuple[str, str], ...]:
    trailing = [("x-request-id", request_id)]
    if timing:
        trailing.append(("server-timing", timing))
    if failure is not None:
        trailing.append(("error-code", failure.code))
        if failure.retry_after_s is not None:
            trailing.append(("retry-after", str(max(1, math.ceil(failure.retry_after_s)))))
            # gRPC's own clients wait as long before they retry, where retries are configured.
            trailing.append(
                ("grpc-retry-pushback-ms", str(math.ceil(failure.retry_after_s * 1000)))
            )
    return tuple(trailing)
