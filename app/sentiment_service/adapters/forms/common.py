"""What the protocols of other servers have in common."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, PlainValidator
from typing_extensions import TypedDict

from sentiment_service.engine.text.encoding import Overflow, TextOptions
from sentiment_service.engine.text.pairs import Text
from sentiment_service.errors import InvalidRequest
from sentiment_service.validation import NO_OBJECT, Threshold, parse_texts

# These protocols have no place for the error of one text, so every text must be valid.
AllTexts = Annotated[Text | list[Text], PlainValidator(parse_texts)]


class ByField:
    """A body that may have several forms. The first field of ``forms`` that it has decides.

    A body without any of them has the form ``otherwise``, if given.
    """

    def __init__(
        self, forms: Mapping[str, type[BaseModel]], otherwise: type[BaseModel] | None = None
    ) -> None:
        self._forms = forms
        self._otherwise = otherwise

    def model_validate(self, obj: Any, /) -> BaseModel:
        """The body in its form.

        Raises:
            ValidationError: it does not match the form.
            InvalidRequest: it has no form.
        """
        fields = obj if isinstance(obj, dict) else ()
        known = (form for name, form in self._forms.items() if name in fields)
        form = next(known, self._otherwise)
        if form is None:
            names = ", ".join(self._forms)
            raise InvalidRequest(f"{NO_OBJECT} with at least one of the fields {names}")
        return form.model_validate(obj)


class LabelScore(TypedDict):
    """A label and its score."""

    label: str
    score: float


class TextParameters(BaseModel):
    """Parameters of all texts; others are ignored."""

    overflow: Overflow = "truncate"
    threshold: Threshold | None = None

    @property
    def options(self) -> TextOptions:
        """The same for the model."""
        return TextOptions(self.overflow, threshold=self.threshold)


def ranking(values: Mapping[str, float]) -> list[LabelScore]:
    """Labels and their scores or logits, highest first."""
    ranked = sorted(values.items(), key=lambda item: -item[1])
    return [{"label": label, "score": value} for label, value in ranked]
