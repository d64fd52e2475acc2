"""``grpc.reflection``: clients such as grpcurl ask for the services and their messages.

grpcio-reflection has v1alpha only, and reads the process's common pool of messages.
"""

from collections.abc import AsyncGenerator

from google.protobuf.descriptor import FileDescriptor
from grpc import StatusCode

from sentiment_service.adapters.grpc.call import Call, Handlers
from sentiment_service.adapters.grpc.messages import POOL, SERVICES, Message


async def reflect(call: Call) -> AsyncGenerator[Message, None]:
    """Answers each question about names in POOL. An unknown name is an error in its answer."""
    async for question in call.messages():
        answer = call.method.response(valid_host=question.host, original_request=question)
        try:
            _fill(answer, question)
        except KeyError:
            code: int = StatusCode.NOT_FOUND.value[0]
            answer.error_response.error_code = code
            answer.error_response.error_message = "this server has nothing of that name"
        yield answer


def _fill(answer: Message, question: Message) -> None:
    match question.WhichOneof("message_request"):
        case "list_services":
            for name in SERVICES:
                answer.list_services_response.service.add(name=name)
        case "file_by_filename":
            _add_file(answer, POOL.FindFileByName(question.file_by_filename))
        case "file_containing_symbol":
            _add_file(answer, POOL.FindFileContainingSymbol(question.file_containing_symbol))
        case _:  # no message here has extensions
            raise KeyError


def _add_file(answer: Message, file: FileDescriptor) -> None:
    # None of the files imports another one.
    answer.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)


HANDLERS: Handlers = {
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo": reflect
    for version in ("v1", "v1alpha")
}
