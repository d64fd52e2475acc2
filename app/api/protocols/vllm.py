"""POST /v1/classify and GET /v1/models, compatible with vLLM."""

import time
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictBool
from typing_extensions import TypedDict

from app.api.answers import JsonAnswer, classify_texts, every_prediction, timing
from app.api.body import read_body
from app.api.openapi import ERRORS, documented, documented_body
from app.api.problems import problem
from app.api.protocols.common import INPUTS, AllTexts, tokens_computed
from app.api.routing import DirectRoute
from app.api.service import Service
from app.errors import RateLimited, ServiceError, Unauthorized

router = APIRouter(tags=["compatibility"], route_class=DirectRoute)


class ClassificationRequest(BaseModel):
    """One text, or a list of texts; other fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": "I love this!"}]})

    input: AllTexts = Field(description=INPUTS)
    model: str | None = Field(default=None, description="name of a served model")
    truncate_prompt_tokens: Literal[-1] | None = Field(
        default=None,
        description="only -1 is accepted: texts are cut to the maximum length of the model",
    )
    truncation_side: Literal["right"] | None = Field(
        default=None, description="only 'right' is accepted: the end of a text is cut off"
    )
    use_activation: StrictBool | None = Field(
        default=None,
        # Until vLLM 0.11 this parameter was called activation.
        validation_alias=AliasChoices("use_activation", "activation"),
        description="false: logits in the place of probabilities",
    )


class ClassificationItem(TypedDict):
    """The prediction for one text."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Usage(TypedDict):
    """The number of tokens that the model saw."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: None


class ClassificationResponse(TypedDict):
    """``data`` has one item for each text, in the order of the texts.

    In each item, ``probs`` has one value for each label, in the order of the model's labels.
    """

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ClassificationItem]
    usage: Usage


class Failure(TypedDict):
    """The fields of an error that OpenAI's clients read."""

    message: str
    type: str
    param: None
    code: str


class ClassificationProblem(TypedDict):
    """An error. ``error`` is the detail if no route was reached (401, for example)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    error: Failure | str
    request_id: str


@router.post(
    "/v1/classify",
    response_model=ClassificationResponse,
    responses=documented(*ERRORS, form=ClassificationProblem),
    openapi_extra=documented_body(ClassificationRequest),
)
async def classify(request: Request) -> Response:
    """Label and probabilities, in the format of vLLM.

    `GET /models` lists the labels in the order of `probs`. If a text is bad, the answer is the
    error of the first bad text.
    """
    try:
        return await _classify(request)
    except ServiceError as error:
        failure: Failure = {
            "message": error.detail,
            "type": error.title,
            "param": None,
            "code": error.code,
        }
        return problem(error, request.state.request_id, error=failure)


class ServedModel(TypedDict):
    """A model name that requests may send as ``model``."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ServedModels(TypedDict):
    """The served models. The first one answers requests that name no model.

    ``models`` has the names again, for KServe's clients.
    """

    object: Literal["list"]
    data: list[ServedModel]
    models: list[str]


@router.get(
    "/v1/models", response_model=ServedModels, responses=documented(Unauthorized, RateLimited)
)
async def models(request: Request) -> Response:
    """The served models, in the format that OpenAI's clients read."""
    service = Service.of(request)
    names = [*service.models.classifiers]
    listed: ServedModels = {
        "object": "list",
        "data": [served_model(service, name) for name in names],
        "models": names,
    }
    return JSONResponse(listed)


def served_model(service: Service, name: str) -> ServedModel:
    """The fields of a model that OpenAI's clients read."""
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "sentiment-service",
    }


async def _classify(request: Request) -> Response:
    body = await read_body(request, ClassificationRequest)
    texts = body.input if isinstance(body.input, list) else [body.input]
    done = await classify_texts(request, texts, model=body.model)
    predictions = every_prediction(done.outcomes)
    tokens = tokens_computed(done.model, predictions)
    response: ClassificationResponse = {
        "id": f"classify-{request.state.request_id}",
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
    return JsonAnswer(response, timing(done))
