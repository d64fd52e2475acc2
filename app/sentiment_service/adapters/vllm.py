"""POST /v1/classify, compatible with vLLM. ``v1_models.py`` has GET /v1/models."""

import time
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import AliasChoices, BaseModel, Field, StrictBool

from sentiment_service.adapters.forms import AllTexts
from sentiment_service.errors import ServiceError
from sentiment_service.http.body import read_body
from sentiment_service.http.exchange import HttpRequest, JsonAnswer, TextRoute
from sentiment_service.http.openapi import FOREIGN_BODY
from sentiment_service.requests.service import Adapter
from sentiment_service.requests.validation import as_list
from sentiment_service.results import every_prediction


class ClassificationRequest(BaseModel):
    """One text, or a list of texts; other fields are ignored. Texts are cut at their end only."""

    input: AllTexts
    model: str | None = None
    truncate_prompt_tokens: Literal[-1] | None = None
    truncation_side: Literal["right"] | None = None
    # Until vLLM 0.11 this parameter was called activation. False: logits, no probabilities.
    use_activation: StrictBool | None = Field(
        default=None, validation_alias=AliasChoices("use_activation", "activation")
    )


def _failure(kind: type[ServiceError], detail: str) -> dict[str, Any]:
    """The member of an error that OpenAI's clients read."""
    failure = {"message": detail, "type": kind.title, "param": None, "code": kind.code}
    return {"error": failure}


class ClassifyRoute(TextRoute):
    """A route whose errors have vLLM's member."""

    error_members = staticmethod(_failure)


router = APIRouter(tags=["compatibility"], route_class=ClassifyRoute)


@router.post("/v1/classify", operation_id="classifyVllm", openapi_extra=FOREIGN_BODY)
async def classify(request: HttpRequest) -> Response:
    """vLLM's classification, with `probs` in the order of the labels in `GET /models`."""
    body = await read_body(request, ClassificationRequest)
    done = await request.exchange.classify(as_list(body.input), model=body.model)
    predictions = every_prediction(done.outcomes)
    tokens = sum(min(prediction["tokens"], done.model.max_tokens) for prediction in predictions)
    response = {
        "id": f"classify-{request.exchange.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": done.model.name,
        "data": [
            {
                "index": index,
                "label": prediction["label"],
                "probs": list(
                    prediction["logits" if body.use_activation is False else "scores"].values()
                ),
                "num_classes": len(done.model.labels),
            }
            for index, prediction in enumerate(predictions)
        ],
        "usage": {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        },
    }
    return JsonAnswer(response, done.server_timing)


ADAPTER = Adapter(router.routes)
