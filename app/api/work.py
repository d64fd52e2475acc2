"""What a request asked of a model, for its line in the access log."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.types import Scope

from app.engine.classifier import Classification
from app.engine.results import Outcome
from app.errors import ServiceError


@dataclass(slots=True)
class Work:
    """The model and the number of texts; later, their tokens and the seconds of each stage.

    The tokens are those of the texts that have a result, special ones included, before truncation.
    """

    model: str
    texts: int
    tokens: int = 0
    stages: dict[str, float] = field(default_factory=dict)

    def add_tokens(self, outcomes: Iterable[Outcome]) -> None:
        """Add the tokens of the texts that have a result."""
        self.tokens += sum(o["tokens"] for o in outcomes if not isinstance(o, ServiceError))


def note_asked(scope: Scope, model: str, texts: int) -> Work | None:
    """Note what the request asks; None if requests are not logged."""
    state = scope["state"]
    if not state.get("logged"):
        return None
    work = state["work"] = Work(model, texts)
    return work


def note_done(work: Work | None, done: Classification, outcomes: Iterable[Outcome]) -> None:
    """Note the tokens of the texts, and the time of each stage."""
    if work is not None:
        work.add_tokens(outcomes)
        work.stages = done.stages
