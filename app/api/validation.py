"""Validates parsed bodies by pydantic models, with errors that say what was wrong."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from app.errors import InvalidRequest, plain_words

Body = TypeVar("Body", bound=BaseModel)
Validated = TypeVar("Validated", bound=BaseModel, covariant=True)

NO_OBJECT = "the body must be a JSON object"
# By pydantic's types of faults.
FAULTS = {
    "missing": "is required",
    "none_required": "must be left out",
    "model_type": "must be an object",
    "too_short": "must not have fewer items than {min_length}",
    "too_long": "must not have more items than {max_length}",
}


class Schema(Protocol[Validated]):
    """What validates a parsed body: a pydantic model, or ``ByField``."""

    def model_validate(self, obj: Any, /) -> Validated:
        """The body as a model."""


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


def checked(value: Any, schema: Schema[Body]) -> Body:
    """A parsed body, validated as ``schema``.

    Raises:
        InvalidRequest: it does not match the schema.
    """
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise InvalidRequest(_first_fault(error)) from None


def _first_fault(error: ValidationError) -> str:
    """Which field is wrong, and what is accepted."""
    fault = error.errors()[0]
    place = ".".join(str(part) for part in fault["loc"])
    if place and fault["type"] in FAULTS:
        return f"{place} {FAULTS[fault['type']].format_map(fault.get('ctx', {}))}"
    if place:
        return f"{place} {plain_words(fault['msg'])}"
    return fault["msg"] if fault["type"] == "unknown_field" else NO_OBJECT
