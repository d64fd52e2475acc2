"""``inference.GRPCInferenceService``: version 2 of the Open Inference Protocol."""

from typing import Any

from pydantic import BaseModel

from sentiment_service.adapters.forms.open_inference import (
    SERVER,
    VERSION,
    InferRequest,
    OutputParameters,
    RequestParameters,
    TensorParameters,
    asked_outputs,
    metadata_of,
    of_version,
    output,
    unpack,
)
from sentiment_service.adapters.grpc.call import Call, Handlers
from sentiment_service.adapters.grpc.health import is_ready
from sentiment_service.adapters.grpc.messages import Message
from sentiment_service.engine.text.encoding import TextOptions
from sentiment_service.errors import InvalidRequest, NotReady, ShuttingDown
from sentiment_service.results import every_prediction
from sentiment_service.validation import checked


async def server_live(call: Call, request: Message) -> Message:
    """Whether the process works or can recover by itself."""
    live = True
    try:
        call.service.check_live()
    except NotReady:
        live = False
    return call.method.response(live=live)


async def server_ready(call: Call, request: Message) -> Message:
    """Whether all models answer, and shutdown has not begun."""
    return call.method.response(ready=await is_ready(call.service))


async def model_ready(call: Call, request: Message) -> Message:
    """Whether the model answers, and shutdown has not begun.

    Raises:
        ModelNotFound: no model has that name or version.
    """
    ready = True
    try:
        classifier = of_version(call.service, request.name, request.version or VERSION)
        call.service.lifecycle.check()
        await classifier.health.check_ready()
    except (NotReady, ShuttingDown):
        ready = False
    return call.method.response(ready=ready)


async def server_metadata(call: Call, request: Message) -> Message:
    """Name and version of the service. None of the protocol's extensions concerns gRPC."""
    return call.method.response(name=SERVER, version=call.service.version)


async def model_metadata(call: Call, request: Message) -> Message:
    """The model's tensors.

    Raises:
        ModelNotFound: no model has that name or version.
    """
    classifier = of_version(call.service, request.name, request.version or VERSION)
    return call.method.response(**metadata_of(classifier.model))


async def model_infer(call: Call, request: Message) -> Message:
    """Labels, scores and logits of a tensor of texts. The first bad text is the call's error.

    The outputs are raw bytes if the texts were.

    Raises:
        ServiceError: the request or one of its texts has no result.
    """
    model = of_version(call.service, request.model_name, request.model_version or VERSION).model
    max_texts = call.service.settings.max_texts
    body = checked(_document(request, max_texts), InferRequest)
    texts = body.inputs[0].texts(b"", max_texts)
    options = TextOptions(body.parameters.overflow)
    done = await call.classify(texts, model=model.name, options=options)
    predictions = every_prediction(done.outcomes)
    answer = call.method.response(model_name=done.model.name, model_version=VERSION, id=request.id)
    for asked in asked_outputs(body, done.model):
        tensor = output(asked.name, predictions, done.model)
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
        "parameters": _parameters(tensor, TensorParameters),
        "data": unpack(raw[0], max_texts) if raw else _texts(tensor),
    }
    outputs = [
        {"name": asked.name, "parameters": _parameters(asked, OutputParameters)}
        for asked in request.outputs
    ]
    parameters = _parameters(request, RequestParameters)
    return {"parameters": parameters, "inputs": [described], "outputs": outputs}


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


HANDLERS: Handlers = {
    f"/inference.GRPCInferenceService/{name}": answer
    for name, answer in {
        "ServerLive": server_live,
        "ServerReady": server_ready,
        "ModelReady": model_ready,
        "ServerMetadata": server_metadata,
        "ModelMetadata": model_metadata,
        "ModelInfer": model_infer,
    }.items()
}
