"""What all routes share that classify: from the outcomes of the texts to the answer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from fastapi import Response
from pydantic import BaseModel

from app.api.openapi.schemas import ModelVersion
from app.engine.classifier import Classification
from app.engine.model.model import Model
from app.engine.predictions import Outcome
from app.engine.text.pairs import Input
from app.errors import ServiceError

NO_HEADERS: Mapping[str, str] = {}


def in_places(texts: Sequence[Input | ServiceError], outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The outcome of each text. ``outcomes`` has one for each that is not an error itself."""
    left = iter(outcomes)
    return [text if isinstance(text, ServiceError) else next(left) for text in texts]


def whole_failure(outcomes: Sequence[Outcome], *, single: bool) -> ServiceError | None:
    """The error of the whole request, if no text has a result.

    It is the error of a single text, or in a list the first server error (5xx).
    """
    if not isinstance(outcomes[0], ServiceError):  # nearly always
        return None
    errors = [outcome for outcome in outcomes if isinstance(outcome, ServiceError)]
    if len(errors) < len(outcomes):
        return None
    return errors[0] if single else next((e for e in errors if e.status >= 500), None)


def version(model: Model) -> ModelVersion:
    """The model that answered."""
    return {"name": model.name, "revision": model.revision, "precision": model.precision}


class JsonAnswer(Response):
    """An answer as JSON. The content is not validated: FastAPI would copy what was just built."""

    def __init__(self, content: Any, headers: Mapping[str, str] = NO_HEADERS) -> None:
        # Response's own constructor is for every case, which takes several times as long.
        self.status_code = 200
        self.background = None
        self.body = msgspec.json.encode(content, enc_hook=BaseModel.model_dump)
        self.raw_headers = [
            *((name.encode(), value.encode()) for name, value in headers.items()),
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
        ]


def timing(done: Classification) -> dict[str, str]:
    """The header that says where the time went, in milliseconds."""
    return {"server-timing": done.server_timing}
