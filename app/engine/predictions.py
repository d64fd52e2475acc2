"""The way of a text through a model: tokens, logits, prediction. There is no HTTP here."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, cast

import numpy as np

from app.engine.model.device_errors import device_error
from app.engine.model.model import Model
from app.engine.results import FailedSentence, Outcome, Prediction, Sentence, item
from app.engine.text.encoding import Encoding
from app.engine.text.pairs import Input, TextPair
from app.engine.text.sentences import Span, sentence_spans
from app.engine.worker import Steps, finish
from app.errors import InvalidRequest, ServiceError, TextTooLong

# Short texts are tokenised in steps of up to this many characters. A step takes about 10 ms.
STEP_CHARS = 10_000
CHARS_PER_TEXT = 30  # one more text takes as long as this many more characters

Overflow = Literal["truncate", "error", "window"]
Split = Literal["sentences"]
Scored = tuple[list[float], list[float]]  # logits and scores, in the order of the labels


@dataclass(frozen=True, slots=True)
class Options:
    """How to process a text.

    ``language`` is a BCP 47 tag. It decides which abbreviations end no sentence.
    """

    overflow: Overflow = "truncate"
    split: Split | None = None
    language: str = "en"


DEFAULTS = Options()


@dataclass(frozen=True, slots=True)
class EncodedSentence:
    """A sentence of a text, from character ``start`` up to, but not including, ``end``."""

    start: int
    end: int
    text: "EncodedText | ServiceError"


@dataclass(slots=True)
class EncodedText:
    """A tokenised text: the whole text in ``windows``, and each of its sentences separately."""

    encoding: Encoding
    options: Options
    sentences: Sequence[EncodedSentence] = ()

    @property
    def windows(self) -> list[Encoding]:
        """The encodings of the whole text that are classified."""
        return self.encoding.windows if self.options.overflow == "window" else [self.encoding]


def encode(
    model: Model, texts: Sequence[Input], *, max_chars: int, options: Options = DEFAULTS
) -> list[EncodedText | ServiceError]:
    """Tokenise each text, or return the error that says why it cannot be classified."""
    if not options.split:
        return _encoded(model, texts, max_chars, options)
    return finish(
        encode_steps(model, texts, max_chars=max_chars, options=options, check=_unlimited)
    )


def encode_steps(
    model: Model,
    texts: Sequence[Input],
    *,
    max_chars: int,
    options: Options,
    check: Callable[[Sequence[Encoding]], None],
) -> Steps[list[EncodedText | ServiceError]]:
    """``encode`` in steps: a few short texts, one long text or one window of sentences at a time.

    After each step, ``check`` is called with the new encodings to infer. If it raises an error, the
    work ends with this error.
    """
    encoded: list[EncodedText | ServiceError] = []
    for group in _groups(texts):
        wholes = _encoded(model, group, max_chars, options)
        encoded += wholes
        check(encodings(wholes))
        yield
    if options.split:
        for index, (text, whole) in enumerate(zip(texts, encoded, strict=True)):
            if isinstance(whole, ServiceError) or isinstance(text, TextPair):
                continue
            sentences: list[EncodedSentence] = []
            for spans in sentence_spans(text, options.language):
                found = _sentences(model, text, spans, options)
                sentences += found
                check(encodings([sentence.text for sentence in found]))
                yield
            encoded[index] = replace(whole, sentences=sentences)
    return encoded


def encodings(texts: Sequence[EncodedText | ServiceError]) -> list[Encoding]:
    """All encodings to infer, in the order in which ``predict`` expects their results."""
    found: list[Encoding] = []
    for text in texts:
        if isinstance(text, EncodedText):
            found += text.windows
            found += encodings([sentence.text for sentence in text.sentences])
    return found


def infer(model: Model, encodings: Sequence[Encoding]) -> list[Scored | ServiceError]:
    """Logits and scores of each encoding, computed as one batch.

    Raises:
        OutOfMemory: the batch needs more memory than there is.
        DeviceLost: no further batch can be computed.
    """
    try:
        logits = model.infer(encodings)
    except Exception as error:
        if (known := device_error(error)) is not None:
            raise known from error
        raise
    rows = [row for row in logits if not isinstance(row, ServiceError)]
    # Compute all scores at once. One at a time, they would take longer than the rest of a short
    # answer.
    values = np.array(rows, dtype=np.float32).reshape(-1, len(model.labels))
    scored = zip(values.tolist(), model.scores(values).tolist(), strict=True)
    return [row if isinstance(row, ServiceError) else next(scored) for row in logits]


def predict(
    model: Model,
    texts: Sequence[EncodedText | ServiceError],
    results: Sequence[Scored | ServiceError],
) -> list[Outcome]:
    """The outcome of each text. ``results`` has one result for each of ``encodings(texts)``."""
    left = iter(results)
    return [
        text if isinstance(text, ServiceError) else _prediction(model, text, left) for text in texts
    ]


def _unlimited(encodings: Sequence[Encoding]) -> None:
    """Accept any number of encodings."""


def _groups(texts: Sequence[Input]) -> Iterator[Sequence[Input]]:
    """The texts in their order, in groups. A group fits in one step, or has one longer text."""
    first = chars = 0
    for index, text in enumerate(texts):
        if chars and chars + len(text) > STEP_CHARS:
            yield texts[first:index]
            first, chars = index, 0
        chars += len(text) + CHARS_PER_TEXT
    yield texts[first:]


def _encoded(
    model: Model, texts: Sequence[Input], max_chars: int, options: Options
) -> list[EncodedText | ServiceError]:
    fitting = iter(model.encode_batch([text for text in texts if len(text) <= max_chars]))
    return [
        _checked(text, next(fitting), model, options)
        if len(text) <= max_chars
        else TextTooLong(f"the text has {len(text)} characters; at most {max_chars} are accepted")
        for text in texts
    ]


def _checked(
    text: Input, encoding: Encoding | ServiceError, model: Model, options: Options
) -> EncodedText | ServiceError:
    if isinstance(encoding, ServiceError):
        return encoding
    if options.split and isinstance(text, TextPair):
        return InvalidRequest('a pair of texts is not split; leave out "split" or text_pair')
    if encoding.truncated and options.overflow != "truncate":
        too_long = f"the text has {encoding.tokens} tokens; the model takes at most "
        too_long += str(model.max_tokens)
        if options.overflow == "error":
            return TextTooLong(f'{too_long} and "overflow" is "error"')
        if isinstance(text, TextPair):
            return TextTooLong(f"{too_long}, and a pair of texts is not cut into windows")
    return EncodedText(encoding, options)


def _sentences(
    model: Model, text: str, spans: Sequence[Span], options: Options
) -> list[EncodedSentence]:
    alone = Options(overflow=options.overflow)
    found = _encoded(model, [text[start:end] for start, end in spans], len(text), alone)
    return [EncodedSentence(*span, one) for span, one in zip(spans, found, strict=True)]


def _prediction(
    model: Model, text: EncodedText, results: Iterator[Scored | ServiceError]
) -> Outcome:
    windows = text.windows
    answers = list(islice(results, len(windows)))
    sentences = [_sentence(model, sentence, results) for sentence in text.sentences]
    scored: list[Scored] = []
    for answer in answers:
        if isinstance(answer, ServiceError):
            return answer
        scored.append(answer)
    logits, scores = scored[0] if len(scored) == 1 else _mean(model, windows, scored)
    # Not by the scores: where they are rounded to the same number, the logits still differ.
    best = logits.index(max(logits))
    prediction: Prediction = {
        "label": model.labels[best],
        "score": scores[best],
        "scores": dict(zip(model.labels, scores, strict=True)),
        "logits": dict(zip(model.labels, logits, strict=True)),
        "tokens": text.encoding.tokens,
        "truncated": text.encoding.truncated,
    }
    if text.options.overflow == "window":
        prediction["truncated"] = False
        prediction["windows"] = len(windows)
    if text.options.split:
        prediction["sentences"] = sentences
    return prediction


def _sentence(
    model: Model, sentence: EncodedSentence, results: Iterator[Scored | ServiceError]
) -> Sentence | FailedSentence:
    if isinstance(sentence.text, ServiceError):
        outcome: Outcome = sentence.text
    else:
        outcome = _prediction(model, sentence.text, results)
    found = {"start": sentence.start, "end": sentence.end, **item(outcome)}
    return cast(Sentence | FailedSentence, found)


def _mean(model: Model, windows: Sequence[Encoding], scored: Sequence[Scored]) -> Scored:
    """One text's logits and scores. Its logits are the mean of its windows', weighted by tokens."""
    logits = np.average([logits for logits, _ in scored], axis=0, weights=[*map(len, windows)])
    scores = model.scores(logits.astype(np.float32))
    return logits.tolist(), scores.tolist()
