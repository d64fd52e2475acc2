"""gRPC's handler of all calls of a server."""

import asyncio
from typing import cast

import grpc

from app.errors import MethodNotAllowed
from app.grpc_api.aio_server import UNKNOWN
from app.grpc_api.call import CODES, GRPC, Answers, Call, Context
from app.grpc_api.limits import CallLimits
from app.service import Service

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
        self.running: set[asyncio.Task[object]] = set()  # each is a call
        self.limits = CallLimits(service, self.running)
        self._answers = answers
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
            task = cast("asyncio.Task[object]", asyncio.current_task())
            self.running.add(task)
            task.add_done_callback(self.running.discard)
            await Call(self.limits, path, self._answers.get(path), context).run()

        return grpc.stream_stream_rpc_method_handler(handle)
