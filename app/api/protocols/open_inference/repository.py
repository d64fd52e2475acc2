"""Extensions of the Open Inference Protocol: the model repository, configuration, statistics.

KServe's and Triton's clients call them. They are not in our OpenAPI document: the protocol has its
own description.
"""

from typing import Any, Literal

from fastapi import APIRouter, Response
from typing_extensions import TypedDict

from app.api.body import parse
from app.api.http_exchange import HttpRequest
from app.api.protocols.open_inference.request import ALL_OUTPUTS
from app.api.protocols.open_inference.response import VERSION, tensor_metadata
from app.api.protocols.open_inference.routes import PLATFORM, served
from app.api.routing import Route
from app.engine.classifier import Classifier
from app.errors import OUTCOMES, InvalidRequest, ServiceError
from app.observability.series import Distribution
from app.service import Service

router = APIRouter(prefix="/v2", include_in_schema=False, route_class=Route)

_DATA_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}


class IndexItem(TypedDict):
    """A served model; ``reason`` says why it is unavailable."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class Duration(TypedDict):
    """How often something was done, and how many nanoseconds that took together."""

    count: int
    ns: int


class ModelStatistics(TypedDict):
    """What a model has done since the start of the process.

    ``inference_count`` counts texts with a result, ``execution_count`` batches. The durations are
    of requests, but ``fail`` counts texts without a result.
    """

    name: str
    version: str
    inference_count: int
    execution_count: int
    inference_stats: dict[str, Duration]


@router.get("/models")
async def names(request: HttpRequest) -> dict[str, list[str]]:
    """The names of the served models."""
    return {"models": [*request.exchange.service.models.classifiers]}


@router.post("/repository/index")
async def index(request: HttpRequest) -> list[IndexItem]:
    """The served models, and whether they answer."""
    classifiers = request.exchange.service.models.classifiers.values()
    return [await _index_item(classifier) for classifier in classifiers]


@router.post("/repository/models/{name}/load")
async def load(request: HttpRequest) -> Response:
    """Load the bundle of a served model again. Needs an admin key."""
    body = await request.body()
    document = parse(body, "the body") if body else {}
    if not isinstance(document, dict) or document.get("parameters"):
        raise InvalidRequest(
            "a model is loaded from its bundle only: send {} or nothing, without parameters"
        )
    await request.exchange.service.reload(request.path_params["name"])
    return Response()


@router.post("/repository/models/{name}/unload")
async def unload(request: HttpRequest) -> Response:
    """Refused: the models are chosen when the service starts."""
    name = request.path_params["name"]
    request.exchange.service.models.classifier(name)  # raises for an unknown name
    raise InvalidRequest(
        "the served models are chosen at start, so none is unloaded; to replace one, change its "
        "bundle and load it again"
    )


@router.get("/models/stats")
@router.get("/models/{name}/stats")
@router.get("/models/{name}/versions/{version}/stats")
async def statistics(request: HttpRequest) -> dict[str, list[ModelStatistics]]:
    """What the models have done since the start, or one of them."""
    if "name" in request.path_params:
        names = [served(request).model.name]
    else:
        names = [*request.exchange.service.models.classifiers]
    return {"model_stats": [_statistics(request.exchange.service, name) for name in names]}


@router.get("/models/{name}/config")
@router.get("/models/{name}/versions/{version}/config")
async def configuration(request: HttpRequest) -> dict[str, Any]:
    """The model's tensors, as Triton describes them."""
    model = served(request).model
    outputs = [tensor_metadata(output.name, -1, model.labels) for output in ALL_OUTPUTS]
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "max_batch_size": 0,  # the first dimension is part of dims
        "input": [{"name": "text", "data_type": "TYPE_STRING", "dims": [-1]}],
        "output": [
            {
                "name": output["name"],
                "data_type": _DATA_TYPES[output["datatype"]],
                "dims": output["shape"],
            }
            for output in outputs
        ],
    }


async def _index_item(classifier: Classifier) -> IndexItem:
    item: IndexItem = {
        "name": classifier.model.name,
        "version": VERSION,
        "state": "READY",
        "reason": "",
    }
    try:
        await classifier.health.check_ready()
    except ServiceError as error:
        item["state"], item["reason"] = "UNAVAILABLE", error.detail
    return item


def _statistics(service: Service, name: str) -> ModelStatistics:
    metrics = service.metrics
    stages, outcomes = metrics.stage_seconds.totals(), metrics.texts.totals()
    tokenize, queue, inference = (
        stages[name, stage] for stage in ("tokenize", "queue", "inference")
    )
    texts = {outcome: int(outcomes[name, outcome].value) for outcome in OUTCOMES}
    succeeded = texts.pop("ok")
    return {
        "name": name,
        "version": VERSION,
        "inference_count": succeeded,
        "execution_count": metrics.batch_texts.totals()[name,].count,
        "inference_stats": {
            "success": {
                "count": inference.count,
                "ns": sum(_nanoseconds(stage) for stage in (tokenize, queue, inference)),
            },
            "fail": {"count": sum(texts.values()), "ns": 0},
            "queue": _duration(queue),
            "compute_input": _duration(tokenize),
            "compute_infer": _duration(inference),
            "compute_output": {"count": 0, "ns": 0},
        },
    }


def _duration(stage: Distribution) -> Duration:
    return {"count": stage.count, "ns": _nanoseconds(stage)}


def _nanoseconds(stage: Distribution) -> int:
    return round(stage.sum * 1e9)
