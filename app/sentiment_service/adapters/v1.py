"""The routes below /v1: vLLM's classification, the models for clients of OpenAI's API, and KServe's
protocol V1.
"""

import time
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import AliasChoices, BaseModel, Field, StrictBool

from sentiment_service.adapters.forms import AllTexts, InstancesRequest, answer_instances
from sentiment_service.errors import ServiceError
from sentiment_service.http.body import read_body
from sentiment_service.http.exchange import HttpRequest, JsonAnswer, Route, TextRoute
from sentiment_service.http.openapi import FOREIGN_BODY, NAME_IN_PATH
from sentiment_service.requests.service import Adapter, Service
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


classify_router = APIRouter(tags=["compatibility"], route_class=ClassifyRoute)


@classify_router.post("/v1/classify", operation_id="classifyVllm", openapi_extra=FOREIGN_BODY)
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


models_router = APIRouter(prefix="/v1/models", tags=["compatibility"], route_class=Route)
# Not in our OpenAPI document, where GET /v1/models/{name} would match it, too: `x:predict` may be a
# name.
predict_router = APIRouter(prefix="/v1/models", include_in_schema=False, route_class=TextRoute)


@models_router.get("", operation_id="listModelsV1", response_model=None)
async def models(request: HttpRequest) -> dict[str, Any]:
    """OpenAI's list of models, and KServe's."""
    service = request.exchange.service
    names = [*service.models.classifiers]
    listed = [served_model(service, name) for name in names]
    return {"object": "list", "data": listed, "models": names}


@models_router.get(
    "/{name}", operation_id="getModelV1", response_model=None, openapi_extra=NAME_IN_PATH
)
async def model(request: HttpRequest) -> dict[str, Any]:
    """OpenAI's description of a model, and KServe's: succeeds while you can send traffic for it."""
    service = request.exchange.service
    classifier = service.models.classifier(request.path_params["name"])
    service.lifecycle.check()
    await classifier.health.check_ready()
    name = classifier.model.name
    return {**served_model(service, name), "name": name, "ready": True}


@predict_router.post("/{name}:predict")
async def predict(request: HttpRequest) -> Response:
    """Labels, scores and logits, in the format of KServe's protocol V1.

    A bad text has its error in its place.
    """
    name = request.exchange.service.models.classifier(request.path_params["name"]).model.name
    body = await read_body(request, InstancesRequest)
    return await answer_instances(request, body, model=name)


def served_model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "sentiment-service",
    }


ADAPTER = Adapter([*classify_router.routes, *models_router.routes, *predict_router.routes])
