"""What the sentiment APIs of clouds share: documents, their sentences and places, and refusals."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any, ClassVar, TypeVar, cast

from starlette.types import Receive, Scope, Send

from sentiment_service import errors
from sentiment_service.engine.classifier import Classifier
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.options import LANGUAGE_TAG, TextOptions
from sentiment_service.engine.step_thread import Steps
from sentiment_service.engine.text.steps import chars_of
from sentiment_service.http.routes import HttpRequest, TextRoute
from sentiment_service.results import LabelScores, Outcome, Prediction, Sentence

Kinds = Mapping[type[errors.ServiceError], type[errors.ServiceError]]
CLASSES = ("positive", "neutral", "negative")
Written = TypeVar("Written")


@dataclass(frozen=True, slots=True)
class Document:
    """A text, or why it could not be read, and its language as a BCP 47 tag, where it is known."""

    text: str | errors.ServiceError
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A document, and the model's results for the whole text and for each of its sentences."""

    text: str
    model: Model
    whole: Prediction
    sentences: list[Sentence]

    @property
    def label(self) -> str:
        """By its sentences: of those that are not neutral, the label of all, or mixed."""
        labels = {sentence["label"] for sentence in self.sentences} - {"neutral"} or {"neutral"}
        return labels.pop() if len(labels) == 1 else "mixed"

    @property
    def mean_scores(self) -> dict[str, float]:
        scores = [*map(scores_of, self.sentences)]
        return {label: fmean(one[label] for one in scores) for label in CLASSES}

    def parts(self, unit: str) -> Iterator[tuple[Sentence, str, int, int]]:
        """Each sentence with its text, its place and its length in one of ``UNITS``."""
        places = Places(self.text, unit)
        for sentence in self.sentences:
            start, end = places.at(sentence["start"]), places.at(sentence["end"])
            yield sentence, self.text[sentence["start"] : sentence["end"]], start, end - start


async def judge(
    request: HttpRequest,
    documents: Sequence[Document],
    write: Callable[[Judged], Written],
    *,
    model: str | None = None,
) -> list[Written | errors.ServiceError]:
    """What ``write`` makes of each document, or why it has no result.

    If none has a result and the service is to blame, its error is raised.
    """
    exchange = request.exchange
    exchange.check_number(len(documents))
    results: list[Written | errors.ServiceError] = [NOT_READ] * len(documents)
    # In the order of their documents, and held until the last: a reload must not come between.
    used: dict[str | None, Classifier] = {}
    with ExitStack() as held:
        for place, language in enumerate(document.language for document in documents):
            if language and not LANGUAGE_TAG.fullmatch(language):
                results[place] = UnsupportedLanguageCode(
                    "the language must be a BCP 47 tag, such as en or pt-BR"
                )
            elif language not in used:
                used[language] = exchange.service.models.classifiers.of(model, language)
                held.enter_context(used[language].in_use())
        for language, classifier in used.items():
            places = [p for p, document in enumerate(documents) if document.language == language]
            texts = [documents[place].text for place in places]
            written = await _written(request, classifier, texts, language, write)
            for place, result in zip(places, written, strict=True):
                results[place] = result
    names = dict.fromkeys(classifier.model.name for classifier in used.values())
    exchange.model = ", ".join(names)
    failures = [result for result in results if isinstance(result, errors.ServiceError)]
    if len(failures) == len(results):
        for error in failures:
            if error.status >= errors.InferenceFailed.status:
                raise error
    return results


class UnsupportedLanguageCode(errors.InvalidRequest):
    """What a document says of its language is none. Azure's name for it."""


# What may become of a sentence of a text that has a result, by its code.
SENTENCE_ERRORS: dict[str, type[errors.ServiceError]] = {
    kind.code: kind
    for kind in (errors.DeadlineExceeded, errors.NotReady, errors.OutOfMemory, errors.ShuttingDown)
}
NOT_READ = errors.InferenceFailed("the document was not read")


async def _written(
    request: HttpRequest,
    classifier: Classifier,
    texts: Sequence[str | errors.ServiceError],
    language: str | None,
    write: Callable[[Judged], Written],
) -> list[Written | errors.ServiceError]:
    used = classifier.model
    if used.multi_label or not used.is_sentiment:
        raise errors.InvalidRequest(
            f"this format has one label for each text, positive, neutral or negative; {used.name} "
            "has others, or several; ask POST /classify"
        )
    options = TextOptions(split="sentences", language=language)
    done = await request.exchange.classify_by(classifier, texts, options)

    def steps() -> Steps[list[Written | errors.ServiceError]]:
        written: list[Written | errors.ServiceError] = []
        for text, outcome in zip(texts, done.outcomes, strict=True):
            judged = _judged(cast(str, text), done.model, outcome)
            written.append(judged if isinstance(judged, errors.ServiceError) else write(judged))
            yield
        return written

    return await request.exchange.in_steps(steps(), sum(map(chars_of, texts)))


def _judged(text: str, model: Model, outcome: Outcome) -> Judged | errors.ServiceError:
    if isinstance(outcome, errors.ServiceError):
        return outcome
    sentences: list[Sentence] = []
    for sentence in outcome["sentences"]:
        if "label" in sentence:
            sentences.append(cast(Sentence, sentence))
            continue
        fault = sentence["error"]
        if fault["code"] != errors.EmptyText.code:  # it has no visible character
            kind = SENTENCE_ERRORS.get(fault["code"], errors.InferenceFailed)
            return kind(f"a sentence has no result: {fault['message']}")
    if not sentences:
        sentences.append({**cast(LabelScores, outcome), "start": 0, "end": len(text)})
    return Judged(text, model, outcome, sentences)


def scores_of(result: LabelScores) -> dict[str, float]:
    """Its score of each class; a model without neutral gives it none."""
    return {label: result["scores"].get(label, 0.0) for label in CLASSES}


class CloudRoute(TextRoute):
    """A route whose errors have the statuses and members that a cloud gives them."""

    # Those that are answered with other statuses than ours.
    answered: ClassVar[Kinds] = {
        kind: type(kind.__name__, (kind,), {"status": 400})
        for kind in (
            errors.EmptyText,
            errors.InvalidRequest,
            errors.ModelNotFound,
            errors.TextTooLong,
            errors.TooManyTexts,
            UnsupportedLanguageCode,
        )
    }
    error_media_type = "application/json"  # some of their clients read no other
    key: ClassVar[str]  # where the cloud's clients put it

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().handle(scope, receive, send)
        except errors.ServiceError as error:
            if (kind := self.answered.get(type(error))) is None:
                raise
            raise error.again(kind=kind) from None

    @classmethod
    def error_members(cls, kind: type[errors.ServiceError], detail: str) -> Mapping[str, Any]:
        if issubclass(kind, errors.Unauthorized):
            detail = f"send one of the API keys (--api-keys) as {cls.key}"
        return cls.failure(kind, detail)

    @staticmethod
    def failure(kind: type[errors.ServiceError], detail: str) -> Mapping[str, Any]:
        """The members of the cloud's form."""
        raise NotImplementedError


# Grapheme clusters by UAX 29 as of Unicode 8.0, which Azure's TextElements_v8 counts: regional
# indicators all join, and what the package regex knows of later versions does not: neither emoji
# joined by U+200D, nor tones of skin and tags.
_HANGUL = (
    r"\p{GCB=L}*(?:\p{GCB=V}+|\p{GCB=LV}\p{GCB=V}*|\p{GCB=LVT})\p{GCB=T}*|\p{GCB=L}+|\p{GCB=T}+"
)
_CONTROL = r"[[\p{GCB=Control}\p{Cc}\p{Cf}]--[\u200c\u200d]]"
_EXTEND = (
    r"[[\p{GCB=Extend}\p{GCB=SpacingMark}\u200d]--[\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]]"
)
_CLUSTER = rf"\r\n|{_CONTROL}|(?:{_HANGUL}|\p{{GCB=RI}}+|(?s:.)){_EXTEND}*"


@cache
def _cluster() -> Any:
    import regex  # it takes longer to load than this module, and few ask for it

    return regex.compile(_CLUSTER, regex.VERSION1)


class Places:
    """Where the characters of a text are, counted from 0 in one of ``UNITS``."""

    def __init__(self, text: str, unit: str) -> None:
        self._text = text
        self._count: Callable[[str], int] = UNITS[unit]
        self._starts: list[int] = []
        if unit == CLUSTERS and not (text.isascii() and "\r\n" not in text):
            self._starts = [found.start() for found in _cluster().finditer(text)]
        self._done = self._counted = 0

    def at(self, place: int) -> int:
        """How many units are before this character. Later characters must be asked for later."""
        if self._starts:
            return bisect_left(self._starts, place)
        self._counted += self._count(self._text[self._done : place])
        self._done = place
        return self._counted


CLUSTERS = "clusters"
UNITS: dict[str, Callable[[str], int]] = {
    "characters": len,
    "bytes": lambda part: len(part.encode()),
    "utf-16": lambda part: len(part.encode("utf-16-le")) // 2,
    CLUSTERS: len,  # where each character is one
}
