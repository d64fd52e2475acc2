"""POST /v1/classify, compatible with vLLM. ``v1_models.py`` has GET /v1/models."""

import time
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictBool
from typing_extensions import TypedDict

from sentiment_service.adapter import Adapter
from sentiment_service.adapters.forms.common import INPUTS, AllTexts
from sentiment_service.api.body import read_body
from sentiment_service.api.http_exchange import HttpRequest, JsonAnswer, TextRoute
from sentiment_service.api.openapi import examples
from sentiment_service.api.openapi.document import ERRORS, documented, documented_body, example
from sentiment_service.errors import ServiceError
from sentiment_service.problems import Problem
from sentiment_service.results import every_prediction
from sentiment_service.validation import as_list


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

    index: Annotated[int, Field(description="number of the text, from 0")]
    label: Annotated[str, Field(description="the label with the highest score")]
    probs: Annotated[
        list[float],
        Field(description="one value for each label, in the order of the model's labels"),
    ]
    num_classes: Annotated[int, Field(description="number of labels")]


class Usage(TypedDict):
    """The number of tokens that the model saw."""

    prompt_tokens: Annotated[int, Field(description="tokens of all texts")]
    total_tokens: Annotated[int, Field(description="the same number")]
    completion_tokens: Annotated[int, Field(description="always 0")]
    prompt_tokens_details: Annotated[dict[str, int] | None, Field(description="always null")]


class ClassificationResponse(TypedDict):
    """The predictions for the texts."""

    id: Annotated[str, Field(description="`classify-` and the answer's `x-request-id`")]
    object: Annotated[Literal["list"], Field(description="always list")]
    created: Annotated[int, Field(description="when it was answered, in Unix seconds")]
    model: Annotated[str, Field(description="name of the model that answered")]
    data: Annotated[
        list[ClassificationItem],
        Field(description="one item for each text, in the order of the texts"),
    ]
    usage: Annotated[Usage, Field(description="the number of tokens that the model saw")]


class Failure(TypedDict):
    """The fields of an error that OpenAI's clients read."""

    message: Annotated[str, Field(description="what was wrong, and what is accepted")]
    type: Annotated[str, Field(description="the kind of error, for people")]
    param: Annotated[str | None, Field(description="always null")]
    code: Annotated[str, Field(description="the kind of error, for programs")]


class ClassificationProblem(Problem):
    """An error. ``error`` is the detail if no route was reached (401, for example)."""

    # mypy lets no subclass widen a field; here the field's type is only for the document.
    error: Annotated[  # type: ignore[misc]
        Failure | str, Field(description="what OpenAI's clients read")
    ]


def _failure(kind: type[ServiceError], detail: str) -> dict[str, Failure]:
    failure: Failure = {"message": detail, "type": kind.title, "param": None, "code": kind.code}
    return {"error": failure}


class ClassifyRoute(TextRoute):
    """A route whose errors have vLLM's member."""

    error_members = staticmethod(_failure)


router = APIRouter(tags=["compatibility"], route_class=ClassifyRoute)

EXAMPLE = {
    "id": "classify-0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    "object": "list",
    "created": 1_767_225_600,
    "model": examples.MODEL,
    "data": [
        {"index": 0, "label": "positive", "probs": [0.061, 0.04, 0.899], "num_classes": 3},
    ],
    "usage": {
        "prompt_tokens": 6,
        "total_tokens": 6,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    },
}


@router.post(
    "/v1/classify",
    operation_id="classifyVllm",
    response_model=ClassificationResponse,
    responses={
        **example(EXAMPLE),
        **documented(*ERRORS, form=ClassificationProblem, members=_failure),
    },
    openapi_extra=documented_body(ClassificationRequest),
)
async def classify(request: HttpRequest) -> Response:
    """Label and probabilities, in the format of vLLM.

    `GET /models` lists the labels in the order of `probs`. If a text is bad, the answer is the
    error of the first bad text.
    """
    body = await read_body(request, ClassificationRequest)
    done = await request.exchange.classify(as_list(body.input), model=body.model)
    predictions = every_prediction(done.outcomes)
    tokens = sum(min(prediction["tokens"], done.model.max_tokens) for prediction in predictions)
    response: ClassificationResponse = {
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
