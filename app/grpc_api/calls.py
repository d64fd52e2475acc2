"""gRPC's handler of all calls of a server."""

import grpc

from app.errors import MethodNotAllowed
from app.grpc_api.call import CODES, GRPC, Answers, Call, Context
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
        self._service = service
        self._answers = answers
        for path in CLASSIFYING:
            for status in {200, *CODES} - {MethodNotAllowed.status}:
                service.metrics.expect_request(path, GRPC, status)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """The handler of a call, which gets its messages as bytes.

        All calls are handled as streams. So the handler begins before the message has arrived, and
        a call without a key is refused before its message is read.
        """
        path = handler_call_details.method

        async def handle(requests: object, context: Context) -> None:
            await Call(self._service, path, self._answers.get(path), context).run()

        return grpc.stream_stream_rpc_method_handler(handle)
