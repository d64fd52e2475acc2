"""What the classifying routes share: a request's texts in, their answer out."""

from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

from app.api.connection import while_connected
from app.api.schemas import ModelVersion
from app.api.service import Service
from app.engine.classifier import Classification
from app.engine.model import Model
from app.engine.predictions import DEFAULTS, Options
from app.engine.results import Outcome, Prediction
from app.errors import ServiceError, TooManyTexts


async def classify_texts(
    request: Request, texts: Sequence[str], *, model: str | None, options: Options = DEFAULTS
) -> Classification:
    """Classify the texts of a request, which stop being work when its client leaves.

    Raises:
        TooManyTexts: there are more than a request may have.
        ServiceError: ``model`` is not served, or the request as a whole failed.
    """
    service = Service.of(request)
    if len(texts) > service.settings.max_texts:
        raise TooManyTexts(
            f"there are {len(texts)} texts; at most {service.settings.max_texts} are accepted"
        )
    work = service.models.classifier(model).classify(
        texts, options, deadline=request.state.deadline
    )
    return await while_connected(request, work)


def every_prediction(outcomes: Sequence[Outcome]) -> list[Prediction]:
    """The predictions, for answers without a place for the error of one text.

    Raises:
        ServiceError: that of the first text without one, which it names.
    """
    predictions = []
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, ServiceError):
            if len(outcomes) == 1:
                raise outcome
            # A new one: other texts, and other requests, may have the same.
            detail = f"text {index}, counted from 0: {outcome.detail}"
            raise type(outcome)(detail, retry_after_s=outcome.retry_after_s) from None
        predictions.append(outcome)
    return predictions


def version(model: Model) -> ModelVersion:
    """What answered."""
    return {"name": model.name, "revision": model.revision, "precision": model.precision}


def json_answer(content: Any, done: Classification) -> Response:
    """The answer, and in its headers where the time went."""
    # Straight to JSON: what was just built need not be validated and copied.
    return Response(to_json(content), media_type="application/json", headers=timing(done))


def timing(done: Classification) -> dict[str, str]:
    """The header that says where the time went, in milliseconds."""
    return {
        "server-timing": f"tokenize;dur={done.tokenize_seconds * 1000:.2f}, "
        f"queue;dur={done.queue_seconds * 1000:.2f}, "
        f"inference;dur={done.inference_seconds * 1000:.2f}"
    }
