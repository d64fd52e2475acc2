"""Bodies and answers that several protocols of other servers have in common."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, LiteralString

import numpy as np
from fastapi import Response
from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, StrictBool, ValidationInfo
from pydantic_core import PydanticCustomError

from sentiment_service.engine.classifier import Classification
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.options import TextOptions
from sentiment_service.engine.text.text_tokenizer import Text
from sentiment_service.errors import InvalidRequest, ServiceError, UnknownField
from sentiment_service.http.routes import HttpRequest, JsonAnswer, Route
from sentiment_service.requests import validation
from sentiment_service.results import Prediction, every_prediction

# These protocols have no place for the error of one text, so every text must be valid.
AllTexts = Annotated[Text | list[Text], PlainValidator(validation.parse_texts)]

_OWN_OPTION = "is an option of inputs, our own form; leave it out, or send inputs"
REFUSED: dict[str, LiteralString] = {
    "candidate_labels": "asks for zero-shot classification, which is not done here; leave it out "
    "to get the model's own labels, which GET /models lists",
    "messages": "asks for a chat template, which no model here has; send texts in another field",
    "inputs": "is our own form, and input and prompt are vLLM's; send only one of them",
    "raw_scores": "is Infinity's, whose answers have a form that is not ours; send inputs, which "
    "get scores and logits",
    "overflow": _OWN_OPTION,
    "split": _OWN_OPTION,
    "threshold": _OWN_OPTION,
}


def _refuse(value: Any, info: ValidationInfo) -> None:
    if value is not None:
        raise PydanticCustomError("refused", REFUSED[str(info.field_name)])


# A field of ``REFUSED``, whose answer would be to another question. Further fields are ignored.
Refused = Annotated[None, PlainValidator(_refuse)]


@dataclass(frozen=True)
class ByField:
    """A body whose first field of ``forms`` decides its form; without one, it is ``otherwise``."""

    forms: Mapping[str, type[BaseModel]]
    otherwise: type[BaseModel] | None = None

    def model_validate(self, obj: Any, /) -> BaseModel:
        fields = obj if isinstance(obj, dict) else {}
        known = (form for name, form in self.forms.items() if name in fields)
        form = next(known, self.otherwise)
        if form is None:
            members = [each.model_fields.items() for each in self.forms.values()]
            needed = sorted({name for of in members for name, one in of if one.is_required()})
            raise UnknownField(f"{validation.NO_OBJECT} with {' or '.join(needed)}", fields)
        return form.model_validate(obj)


class OpenAiRoute(Route):
    """A route whose errors have the member that OpenAI's clients read."""

    @staticmethod
    def error_members(kind: type[ServiceError], detail: str) -> dict[str, Any]:
        failure = {"message": detail, "type": kind.title, "param": None, "code": kind.code}
        return {"error": failure}


class TextParameters(BaseModel):
    """Parameters of all texts; others are ignored."""

    overflow: validation.OverflowOption = "truncate"
    threshold: validation.Threshold | None = None
    candidate_labels: Refused = None

    @property
    def options(self) -> TextOptions:
        return TextOptions(self.overflow, threshold=self.threshold)


def ranking(values: Mapping[str, float]) -> list[dict[str, Any]]:
    ranked = sorted(values.items(), key=lambda item: -item[1])
    return [{"label": label, "score": value} for label, value in ranked]


# {"instances": […]} → {"predictions": […]}: the form of Vertex AI and KServe V1.

TEXT_FIELDS = ("text", "inputs", "content")
ACCEPTED = f"a string, or an object with a string in one of the fields {', '.join(TEXT_FIELDS)}"


def text_of_record(value: Any) -> Text | None:
    """The text or pair that a record of a platform holds: the value itself, or in its fields.

    Null is an empty text. None means that the record holds something else.
    """
    text, text_pair = value, None
    if isinstance(value, dict):
        text = next((value[name] for name in TEXT_FIELDS if name in value), value)
        text_pair = value.get("text_pair")
    return validation.text_or_pair("" if text is None else text, text_pair)


def _texts(value: Any) -> list[Text]:
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("instances", "must be a list of at least one text")
    texts = []
    for index, instance in enumerate(value):
        if (text := text_of_record(instance)) is None:
            raise PydanticCustomError(
                "instances",
                "item {index}, counted from 0, must be {accepted}",
                {"index": index, "accepted": ACCEPTED},
            )
        texts.append(text)
    return texts


class InstancesRequest(BaseModel):
    """A list of texts, or of objects with a text; other fields are ignored."""

    instances: Annotated[list[Text], PlainValidator(_texts)]
    parameters: TextParameters | None = None


async def answer_instances(
    request: HttpRequest, body: InstancesRequest, *, model: str | None = None
) -> Response:
    """Classify the instances. A bad text has its error in its place."""
    options = (body.parameters or TextParameters()).options
    done = await request.exchange.classify(body.instances, model=model, options=options)
    return JsonAnswer({"predictions": done.items()}, done.server_timing)


# {"inputs": …, "parameters": {"top_k": …}} → labels by score: the form of Hugging Face.

Function = Literal["softmax", "sigmoid", "none"]

TRUNCATED: dict[Any, bool] = {"longest_first": True, "only_first": True, "do_not_truncate": False}


def _truncation(value: Any) -> Any:
    return TRUNCATED.get(value, value) if isinstance(value, str) else value


class PipelineParameters(BaseModel):
    """``function_to_apply`` turns logits into scores; None: the model's own.

    With ``truncation`` false, a text that is too long is refused. Others are ignored.
    """

    top_k: Annotated[int, Field(strict=True, ge=1), BeforeValidator(validation.whole)] | None = None
    function_to_apply: Function | None = None
    truncation: Annotated[StrictBool, BeforeValidator(_truncation)] | None = None
    max_length: Annotated[int, Field(strict=True), BeforeValidator(validation.whole)] | None = None
    add_special_tokens: Literal[True] | None = None
    return_all_scores: Any = None  # of the pipeline before its version 5
    candidate_labels: Refused = None


class TextClassification(BaseModel):
    """One text, or a list of texts; other fields are ignored."""

    candidate_labels: Refused = None
    inputs: AllTexts
    parameters: PipelineParameters | None = None


async def best_labels(
    request: HttpRequest, body: TextClassification
) -> tuple[list[list[dict[str, Any]]], Classification]:
    """Classify the texts: for each text, the ``top_k`` labels with the highest scores."""
    parameters = body.parameters or PipelineParameters()
    most = request.exchange.service.models.classifiers.of(None).model.max_tokens
    if parameters.max_length is not None and parameters.max_length < most:
        raise InvalidRequest(
            f"parameters.max_length must be at least {most}, the model's own, or left out: texts "
            "are cut at that length only"
        )
    options = TextOptions("error" if parameters.truncation is False else "truncate")
    done = await request.exchange.classify(validation.as_list(body.inputs), options=options)
    predictions = every_prediction(done.outcomes)
    scores = _scores(done.model, predictions, parameters.function_to_apply)
    ranked = [ranking(by_label)[: parameters.top_k] for by_label in scores]
    return ranked, done


def _scores(
    model: Model, predictions: Sequence[Prediction], function: Function | None
) -> Iterable[Mapping[str, float]]:
    """The scores of each prediction; if a function is given, that of its logits."""
    if function is None:
        return [prediction["scores"] for prediction in predictions]
    logits = [prediction["logits"] for prediction in predictions]
    if function == "none":
        return logits
    rows = np.array([[*by_label.values()] for by_label in logits], dtype=np.float32)
    scores = model.scores(rows, function).tolist()
    return [dict(zip(model.labels, row, strict=True)) for row in scores]
