"""What OpenAPI says about the engine's results: the engine's own types have no descriptions."""

from typing import Any

_SPAN = {
    "start": "position of the first character, from 0",
    "end": "position of the character after the last one",
}
_FAILED = {"error": "why there is no prediction"}
_LABEL_SCORES = {
    "label": "the label with the highest score",
    "score": "its score",
    "scores": "softmax of the logits (sigmoid for a multi-label checkpoint); the logits of a "
    "calibrated model are divided by its temperature first",
    "logits": "what the model computed, never calibrated",
    "tokens": "tokens of the text, special ones included, before truncation",
    "truncated": "whether the end of the text was cut off",
    "polarity": "the score of positive less that of negative, from -1 to 1; only of models with "
    "these labels, with or without neutral",
    "labels": "those at or above their threshold; only of multi-label models",
    "warnings": "why the model may be wrong about the text. other_language: by its script and "
    "frequent words, it is not in the model's language (only of models of English); "
    "unknown_tokens: more than a fifth of its tokens stand for what the model does not know",
    "windows": "number of classified windows, if overflow is window",
}
# The members of each component.
DESCRIPTIONS = {
    "ItemError": {
        "code": "the kind of error, for programs",
        "message": "what was wrong, and what is accepted",
    },
    "FailedItem": _FAILED,
    "FailedSentence": _SPAN | _FAILED,
    "Sentence": _SPAN | _LABEL_SCORES,
    "Prediction": _LABEL_SCORES | {"sentences": "the sentences in order, if split is set"},
}


def describe_results(schemas: dict[str, Any]) -> None:
    """Add the descriptions to those components that are results of the engine."""
    for component in DESCRIPTIONS.keys() & schemas.keys():
        members = schemas[component]["properties"]
        for member, description in DESCRIPTIONS[component].items():
            members[member]["description"] = description
