"""The methods: the Open Inference Protocol, health and reflection.

Not by the packages for the latter two: grpcio-health-checking lets a call of Watch that is not read
hold up all others, and grpcio-reflection reads the process's common pool of messages.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from grpc import StatusCode
from pydantic import BaseModel

from sentiment_service.adapters import tensors
from sentiment_service.adapters.grpc.call import INFER, Call, Handlers
from sentiment_service.adapters.grpc.messages import POOL, SERVICES, Message
from sentiment_service.engine.options import TextOptions
from sentiment_service.errors import InvalidRequest, NotFound, NotReady, ShuttingDown
from sentiment_service.requests.service import Service
from sentiment_service.requests.validation import checked

REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
LOOK_S = 1.0  # between two checks of the state for a call that watches it
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


async def server_live(call: Call, request: Message) -> Message:
    live = False
    with suppress(NotReady):
        call.service.check_live()
        live = True
    return call.method.response(live=live)


async def server_ready(call: Call, request: Message) -> Message:
    return call.method.response(ready=await is_ready(call.service))


async def model_ready(call: Call, request: Message) -> Message:
    ready = False
    classifier = tensors.of_version(call.service, request.name, request.version)
    with suppress(NotReady, ShuttingDown):
        call.service.lifecycle.check()
        await classifier.health.check_ready()
        ready = True
    return call.method.response(ready=ready)


async def server_metadata(call: Call, request: Message) -> Message:
    return call.method.response(name=tensors.SERVER, version=call.service.version)


async def model_metadata(call: Call, request: Message) -> Message:
    classifier = tensors.of_version(call.service, request.name, request.version)
    return call.method.response(**tensors.metadata_of(classifier.model))


async def model_infer(call: Call, request: Message) -> Message:
    """Labels, scores and logits of a tensor of texts. The first bad text is the call's error.

    The outputs are raw bytes if the texts were.
    """
    model = tensors.of_version(call.service, request.model_name, request.model_version).model
    max_texts = call.service.settings.max_texts
    body = checked(_document(request, max_texts), tensors.InferRequest)
    texts = body.inputs[0].texts(b"", max_texts)
    options = TextOptions(body.parameters.overflow)
    done = await call.classify(texts, model=model.name, options=options)
    call.timing = done.server_timing
    answer = call.method.response(
        model_name=done.model.name, model_version=tensors.VERSION, id=request.id
    )
    for tensor in tensors.outputs(body, done):
        added = answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if request.raw_input_contents:
            answer.raw_output_contents.append(tensor.packed)
        elif tensor.datatype == "BYTES":
            added.contents.bytes_contents.extend(value.encode() for value in tensor.values)
        else:
            added.contents.fp32_contents.extend(tensor.values)
    return answer


def _document(request: Message, max_texts: int) -> dict[str, Any]:
    """The request in the protocol's JSON form, which has the same fields and the same rules."""
    raw = request.raw_input_contents
    if len(request.inputs) != 1:
        raise InvalidRequest(f"inputs: there are {len(request.inputs)}; send one, named text")
    if len(raw) > 1:
        raise InvalidRequest(f"raw_input_contents has {len(raw)} items for 1 input")
    (tensor,) = request.inputs
    if raw and tensor.HasField("contents"):
        raise InvalidRequest("an input has contents beside raw_input_contents; send one of them")
    described = {
        "name": tensor.name,
        "datatype": tensor.datatype,
        # [n] or [n, 1]: a third number is one too many, and there may be a million.
        "shape": list(tensor.shape[:3]),
        "parameters": _parameters(tensor, tensors.TensorParameters),
        "data": tensors.unpack(raw[0], max_texts) if raw else _texts(tensor),
    }
    asked = [
        {"name": output.name, "parameters": _parameters(output, tensors.OutputParameters)}
        for output in request.outputs
    ]
    parameters = _parameters(request, tensors.RequestParameters)
    return {"parameters": parameters, "inputs": [described], "outputs": asked}


def _parameters(message: Message, known: type[BaseModel]) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "", None)
        # KServe's client sends the parameter of HTTP's binary form, which says nothing here.
        for name in known.model_fields.keys() - {"binary_data_size"}
        if name in message.parameters and (value := message.parameters[name])
    }


def _texts(tensor: Message) -> list[str]:
    try:
        return [text.decode() for text in tensor.contents.bytes_contents]
    except UnicodeDecodeError:
        raise InvalidRequest("inputs.0: a text of bytes_contents is not UTF-8") from None


async def check(call: Call, request: Message) -> Message:
    """Whether the service answers: all services of this server have the same state."""
    status = await _status(call.service, request.service)
    if status == SERVICE_UNKNOWN:
        raise NotFound(f"no service has that name; the services are: {', '.join(SERVICES)}")
    return call.method.response(status=status)


async def watch(call: Call) -> AsyncGenerator[Message, None]:
    """The state now, and again whenever it changes, until the service stops."""
    name = (await call.read()).service
    closing = call.service.lifecycle.closing
    latest = None
    with call.limits.watching():
        while True:
            ends = closing.is_set()
            if (status := await _status(call.service, name)) != latest:
                latest = status
                yield call.method.response(status=status)
            if ends:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await closing.wait()


async def _status(service: Service, name: str) -> int:
    if name not in ("", *SERVICES):
        return SERVICE_UNKNOWN
    return SERVING if await is_ready(service) else NOT_SERVING


async def is_ready(service: Service) -> bool:
    try:
        await service.check_ready()
    except (NotReady, ShuttingDown):
        return False
    return True


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


# By the methods' paths. ``server.py`` adds ``reflect`` at REFLECT, unless ``--docs`` is off.
HANDLERS: Handlers = {
    "/inference.GRPCInferenceService/ServerLive": server_live,
    "/inference.GRPCInferenceService/ServerReady": server_ready,
    "/inference.GRPCInferenceService/ModelReady": model_ready,
    "/inference.GRPCInferenceService/ServerMetadata": server_metadata,
    "/inference.GRPCInferenceService/ModelMetadata": model_metadata,
    INFER: model_infer,
    "/grpc.health.v1.Health/Check": check,
    "/grpc.health.v1.Health/Watch": watch,
}
