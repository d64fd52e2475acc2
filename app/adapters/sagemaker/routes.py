"""Amazon SageMaker's routes: GET /ping, POST /invocations and GET /execution-parameters.

The form of Hugging Face's containers, which have the same route, is among them.
"""

from typing import cast

from fastapi import APIRouter, Response
from pydantic import BaseModel
from typing_extensions import TypedDict

from app.adapter import Adapter
from app.adapters.forms.common import ByField
from app.adapters.forms.instances import InstancesRequest, answer_instances
from app.adapters.forms.pipeline import TextClassification, best_labels
from app.adapters.sagemaker.records import (
    Answers,
    Reader,
    answer_records,
    read_csv,
    read_json,
    write_csv,
    write_json,
)
from app.api.body import media_type, read_body
from app.api.http_exchange import HttpRequest, JsonAnswer, Route, TextRoute
from app.api.openapi.document import ERRORS, documented
from app.api.routes import classify
from app.errors import UnsupportedMediaType
from app.limits import Paths, PathSet
from app.validation import ClassifyRequest

# Not in our OpenAPI document: JSON Schema can neither say which field decides nor describe lines.
# The platform has its own description, and docs/platforms.md has ours.
router = APIRouter(include_in_schema=False, route_class=Route)
text_router = APIRouter(include_in_schema=False, route_class=TextRoute)

# The requests of a transform job may together have at most this many megabytes.
JOB_MEGABYTES = 100
JSON_LINES = Answers("application/jsonlines", write_json)
# By content type: how a line is read, and how lines are answered that ask for no other form.
RECORDS: dict[str, tuple[Reader, Answers]] = {
    "application/jsonlines": (read_json, JSON_LINES),
    "application/jsonl": (read_json, JSON_LINES),
    "application/x-ndjson": (read_json, JSON_LINES),
    "text/csv": (read_csv, Answers("text/csv", write_csv)),
}
# By the header Accept.
ANSWERS = {
    **{media_type: answers for media_type, (_, answers) in RECORDS.items()},
    "application/json": Answers("application/json", write_json, join=b",", ends=(b"[", b"]")),
}
# A body in JSON has the form of the first of these fields that it has. ``inputs`` alone is answered
# as by Hugging Face's containers; with one of our own fields, as by POST /classify.
FORMS: dict[str, type[BaseModel]] = {
    "instances": InstancesRequest,
    **{name: ClassifyRequest for name in ClassifyRequest.model_fields if name != "inputs"},
    "inputs": TextClassification,
}


class ExecutionParameters(TypedDict):
    """How a batch transform job should call, unless it sets this itself."""

    MaxConcurrentTransforms: int
    BatchStrategy: str
    MaxPayloadInMB: int


@router.get("/ping")
async def ping(request: HttpRequest) -> Response:
    """Succeeds, with an empty answer, while you can send traffic."""
    await request.exchange.service.check_ready()
    return Response()


@router.get("/execution-parameters")
async def execution_parameters(request: HttpRequest) -> ExecutionParameters:
    """How a batch transform job should call, unless it sets this itself."""
    service = request.exchange.service
    concurrent = service.models.classifier(None).plan.runners
    megabytes = service.settings.max_body_bytes // 2**20
    return {
        "MaxConcurrentTransforms": concurrent,
        "BatchStrategy": "MULTI_RECORD",
        "MaxPayloadInMB": max(1, min(megabytes, JOB_MEGABYTES // concurrent)),
    }


@text_router.post("/invocations", responses=documented(*ERRORS))
async def invocations(request: HttpRequest) -> Response:
    """Classify in the formats of Amazon SageMaker, and of the containers that run there.

    JSON Lines and CSV are answered line by line; blank and bad lines have their error in their
    place. In JSON, the fields decide: `inputs` alone is answered as by Hugging Face's containers,
    `inputs` with a field of `POST /classify` as there, and `instances` as by Vertex AI.
    """
    content_type = media_type(request, b"content-type")
    if content_type in RECORDS:
        read, answers = RECORDS[content_type]
        return await answer_records(
            request, read, ANSWERS.get(media_type(request, b"accept"), answers)
        )
    if content_type != "application/json":
        raise UnsupportedMediaType(f"send one of: application/json, {', '.join(RECORDS)}")
    body = await read_body(request, ByField(FORMS))
    match body:
        case InstancesRequest():
            return await answer_instances(request, body)
        case ClassifyRequest():
            return await classify.answer(request, body)
        case _:
            return await _as_container(request, cast(TextClassification, body))


async def _as_container(request: HttpRequest, body: TextClassification) -> Response:
    """What Hugging Face's pipeline for text classification returns.

    Without ``top_k``, each text has its best label, in one list for all texts. With it, each text
    has a list of labels, and that of a single text stands alone.
    """
    ranked, done = await best_labels(request, body)
    if body.parameters is None or "top_k" not in body.parameters.model_fields_set:
        return JsonAnswer([labels[0] for labels in ranked], done.server_timing)
    return JsonAnswer(ranked if isinstance(body.inputs, list) else ranked[0], done.server_timing)


ADAPTER = Adapter(
    [*router.routes, *text_router.routes],
    # The platform sends no key with GET.
    Paths(probes=PathSet({"/ping"}), open=PathSet({"/execution-parameters"})),
    instances=frozenset({"/invocations"}),
)
