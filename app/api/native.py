"""POST /classify."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from app.api.body import documented_body, read_body
from app.api.connection import while_connected
from app.api.middleware import DirectRoute
from app.api.predictions import Prediction, document
from app.api.problems import documented
from app.api.schemas import ClassifyRequest, ClassifyResponse
from app.api.service import Service
from app.errors import (
    DeadlineExceeded,
    EmptyText,
    InferenceFailed,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    ServiceError,
    ShuttingDown,
    TextTooLong,
    TooManyTexts,
    UnsupportedMediaType,
)

router = APIRouter(tags=["classification"], route_class=DirectRoute)


@router.post(
    "/classify",
    response_model=ClassifyResponse,
    responses=documented(
        ModelNotFound,
        PayloadTooLarge,
        UnsupportedMediaType,
        InvalidRequest,
        EmptyText,
        TextTooLong,
        TooManyTexts,
        Overloaded,
        InferenceFailed,
        NotReady,
        ShuttingDown,
        DeadlineExceeded,
    ),
    openapi_extra=documented_body(ClassifyRequest),
)
async def classify(request: Request) -> Response:
    """Label, scores and logits for one text or many.

    `results` is always a list, in the order of the texts. In a list, a bad text fails alone,
    in its place; a single bad text is the error itself.
    """
    service = Service.of(request)
    body = await read_body(request, ClassifyRequest)
    single = isinstance(body.inputs, str)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    if len(texts) > service.settings.max_texts:
        raise TooManyTexts(
            f"inputs has {len(texts)} texts; at most {service.settings.max_texts} are accepted"
        )
    classifier = service.classifier(body.model)
    done = await while_connected(request, classifier.classify(texts, overflow=body.overflow))
    if error := _whole_failure(done.outcomes, single=single):
        raise error
    model = classifier.model
    response: ClassifyResponse = {
        "model": {"name": model.name, "revision": model.revision, "precision": model.precision},
        "labels": model.labels,
        "results": [document(outcome) for outcome in done.outcomes],
    }
    # Straight to JSON: what was just built need not be validated and copied.
    return Response(
        to_json(response),
        media_type="application/json",
        headers={
            "server-timing": f"tokenize;dur={done.tokenize_seconds * 1000:.2f}, "
            f"queue;dur={done.queue_seconds * 1000:.2f}, "
            f"inference;dur={done.inference_seconds * 1000:.2f}"
        },
    )


def _whole_failure(
    outcomes: Sequence[Prediction | ServiceError], *, single: bool
) -> ServiceError | None:
    """The error of the request: of its only text, or ours when not one text has an answer."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, ServiceError)]
    if len(errors) < len(outcomes):
        return None
    return errors[0] if single else next((e for e in errors if e.status >= 500), None)
