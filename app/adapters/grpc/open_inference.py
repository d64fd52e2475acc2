"""``inference.GRPCInferenceService``: version 2 of the Open Inference Protocol."""

from typing import Any, get_args

from pydantic import BaseModel

from app.adapters.forms.open_inference.request import (
    JsonParameters,
    JsonRequest,
    OutputName,
    OutputParameters,
    RequestParameters,
)
from app.adapters.forms.open_inference.tensors import (
    SERVER,
    VERSION,
    asked_outputs,
    metadata_of,
    of_version,
    output_tensor,
    packed_values,
    unpack,
)
from app.adapters.grpc.call import Call, Handlers
from app.adapters.grpc.health import is_ready
from app.adapters.grpc.messages import Message
from app.engine.predictions import every_prediction
from app.engine.text.encoding import TextOptions
from app.errors import InvalidRequest, NotReady, ShuttingDown, TooManyTexts
from app.validation import checked


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
    known = metadata_of(classifier.model)
    return call.method.response(
        name=known["name"],
        versions=known["versions"],
        platform=known["platform"],
        inputs=known["inputs"],
        outputs=known["outputs"],
    )


async def model_infer(call: Call, request: Message) -> Message:
    """Labels, scores and logits of a tensor of texts. The first bad text is the call's error.

    The outputs are raw bytes if the texts were.

    Raises:
        ServiceError: the request or one of its texts has no result.
    """
    model = of_version(call.service, request.model_name, request.model_version or VERSION).model
    body = checked(_document(request, call.service.settings.max_texts), JsonRequest)
    texts = body.inputs[0].data
    if len(texts) != body.inputs[0].shape:
        raise InvalidRequest(
            f"inputs.0: shape says {body.inputs[0].shape} texts; there are {len(texts)}"
        )
    options = TextOptions(body.parameters.overflow)
    done = await call.classify(texts, model=model.name, options=options)
    predictions = every_prediction(done.outcomes)
    names = [output.name for output in asked_outputs(body, done.model)]
    tensors = [output_tensor(name, predictions, done.model.labels) for name in names]
    answer = call.method.response(model_name=done.model.name, model_version=VERSION, id=request.id)
    for tensor in tensors:
        datatype, values = tensor["datatype"], tensor["data"]
        output = answer.outputs.add(name=tensor["name"], datatype=datatype, shape=tensor["shape"])
        if request.raw_input_contents:
            answer.raw_output_contents.append(packed_values(datatype, values))
        elif datatype == "BYTES":
            output.contents.bytes_contents.extend(str(value).encode() for value in values)
        else:
            output.contents.fp32_contents.extend(values)
    return answer


def _document(request: Message, max_texts: int) -> dict[str, Any]:
    """The request in the protocol's JSON form, which has the same fields and the same rules.

    A message of 2 MB may have a million items of each field. So their numbers are checked before
    anything is made of them.
    """
    raw = request.raw_input_contents
    if len(request.inputs) != 1:
        raise InvalidRequest(f"inputs: there are {len(request.inputs)}; send one, named text")
    if len(request.outputs) > (most := len(get_args(OutputName))):
        raise InvalidRequest(
            f"outputs: there are {len(request.outputs)}; at most {most} are accepted"
        )
    if len(raw) > 1:
        raise InvalidRequest(f"raw_input_contents has {len(raw)} items for 1 input")
    (tensor,) = request.inputs
    if raw and tensor.HasField("contents"):
        raise InvalidRequest("an input has contents beside raw_input_contents; send one of them")
    return {
        "parameters": _parameters(request, RequestParameters),
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape[:3]),  # [n] or [n, 1]: a third number is one too many
                "parameters": _parameters(tensor, JsonParameters),
                "data": unpack(raw[0], max_texts) if raw else _texts(tensor, max_texts),
            }
        ],
        "outputs": [
            {"name": output.name, "parameters": _parameters(output, OutputParameters)}
            for output in request.outputs
        ],
    }


def _parameters(message: Message, known: type[BaseModel]) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "", None)
        # KServe's client sends the parameter of HTTP's binary form, which says nothing here.
        for name in known.model_fields.keys() - {"binary_data_size"}
        if name in message.parameters and (value := message.parameters[name])
    }


def _texts(tensor: Message, max_texts: int) -> list[str]:
    contents = tensor.contents.bytes_contents
    if len(contents) > max_texts:
        raise TooManyTexts(f"there are {len(contents)} texts; at most {max_texts} are accepted")
    try:
        return [text.decode() for text in contents]
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
