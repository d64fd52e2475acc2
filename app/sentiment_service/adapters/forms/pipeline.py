"""{"inputs": …, "parameters": {"top_k": …}} → labels by score: Hugging Face's form."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sentiment_service.adapters.forms.common import INPUTS, AllTexts, LabelScore, ranking
from sentiment_service.api.http_exchange import HttpRequest
from sentiment_service.engine.classifier import Classification
from sentiment_service.engine.model.model import Model
from sentiment_service.results import Prediction, every_prediction
from sentiment_service.validation import as_list, whole

Function = Literal["softmax", "sigmoid", "none"]


class PipelineParameters(BaseModel):
    """The supported parameters; other parameters are ignored."""

    top_k: Annotated[int, Field(strict=True, ge=1), BeforeValidator(whole)] | None = Field(
        default=None, description="labels in the answer; all unless given"
    )
    function_to_apply: Function | None = Field(
        default=None,
        description="function that turns logits into scores; if not given, the model's own. "
        "softmax and sigmoid use the temperature of a calibrated model",
    )


class TextClassification(BaseModel):
    """One text, or a list of texts; other fields are ignored."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": "I love this!", "parameters": {"top_k": 2}}]}
    )

    inputs: AllTexts = Field(description=INPUTS)
    parameters: PipelineParameters | None = Field(default=None, description="what to answer")


async def best_labels(
    request: HttpRequest, body: TextClassification
) -> tuple[list[list[LabelScore]], Classification]:
    """Classify the texts: for each text, the ``top_k`` labels with the highest scores.

    Raises:
        ServiceError: a text is bad, or the request as a whole failed.
    """
    parameters = body.parameters or PipelineParameters()
    done = await request.exchange.classify(as_list(body.inputs), model=None)
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
