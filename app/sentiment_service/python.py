"""What Python programs use in the place of a service: a model in their own process."""

import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypedDict, Unpack, overload

from sentiment_service.engine.options import Overflow, Preprocessing, Split, TextOptions
from sentiment_service.engine.text.text_tokenizer import TextPair
from sentiment_service.errors import EmptyText, InvalidRequest, ServiceError, UserError
from sentiment_service.exported_models import with_bundles
from sentiment_service.files.local import LocalClassifier
from sentiment_service.files.results import (
    Frame,
    ResultColumns,
    as_pandas,
    columns_of,
    progress_bar,
    texts_of,
    values_of,
    with_reason,
    with_results,
)
from sentiment_service.files.table import split_into_chunks
from sentiment_service.requests.validation import PAIR, ClassifyRequest, checked, text_of
from sentiment_service.results import Outcome, item
from sentiment_service.settings.sources import load_settings

if TYPE_CHECKING:
    import pandas as pd

# A text, or {"text": ..., "text_pair": ...} for a model that takes pairs of texts.
Text = str | Mapping[str, str]

# What stands in a table for a value that is missing, as ``str`` gives it: None, NaN of any type,
# and pandas' NA and NaT. Comparing them differs from type to type.
MISSING = ("None", "nan", "NaN", "<NA>", "NaT")
BAR_AFTER_S = 2.0
FLAG = re.compile("--([a-z]+(?:-[a-z]+)*)")


@dataclass(frozen=True)
class Prediction:
    """The result of one text, as in an answer of the service.

    ``tokens`` is the number of tokens before truncation, ``windows`` the number of parts that were
    classified, with the overflow "window". ``polarity`` is P(positive) - P(negative), if the model
    has these labels. ``labels`` are those that a multi-label model has chosen. ``warnings``
    are as in docs/api.md. ``sentences`` are there with ``split="sentences"``.
    """

    label: str
    score: float
    scores: dict[str, float]
    logits: dict[str, float]
    tokens: int
    truncated: bool
    polarity: float | None = None
    labels: list[str] | None = None
    windows: int | None = None
    warnings: list[str] | None = None
    sentences: "list[Sentence | SentenceError] | None" = None


@dataclass(frozen=True)
class ItemError:
    """Why a text of several has no prediction. ``code`` is stable, ``message`` is for people.

    What a prediction has is None, so that ``[one.label for one in results]`` is a column.
    """

    code: str
    message: str
    label = score = scores = logits = tokens = truncated = None
    polarity = labels = windows = warnings = sentences = None


@dataclass(frozen=True, kw_only=True)
class Sentence(Prediction):
    """The result of a sentence: the text's characters from ``start`` to before ``end``."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class SentenceError(ItemError):
    """Why a sentence has no prediction."""

    start: int
    end: int


class _Options(TypedDict, total=False):
    overflow: Overflow
    split: Split | None
    language: str
    threshold: float | None


class Results(list[Prediction | ItemError]):
    """The result of each text, in order: a prediction, or the error in its place."""

    def __init__(self, outcomes: Iterable[Outcome], columns: ResultColumns, index: Any) -> None:
        super().__init__(map(_result, outcomes))
        self._columns = columns
        self._index = index

    def to_frame(self) -> "pd.DataFrame":
        """A row for each text, with the columns that ``sentiment classify`` adds to a file.

        If the texts were a column of pandas, the rows have its index. To add them to a table, use
        ``add_columns``: a join by an index that repeats would multiply the rows.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        items = (vars(one) if isinstance(one, Prediction) else {"error": vars(one)} for one in self)
        return as_pandas(columns_of(items, self._columns), self._columns, self._index)


class Classifier:
    """A model in this process, with the engine, the results and the errors of the service.

    Threads can share it. Close it or use it in a ``with`` to free the model at once; nothing is
    left behind otherwise.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str | None = None,
        precision: Literal["auto", "fp32", "fp16", "int8"] | None = None,
        runners: int | None = None,
        threads: int | None = None,
        max_text_chars: int | None = None,
        cache_dir: str | Path | None = None,
        labels: str | Sequence[str] | None = None,
        preprocessing: Literal["auto", Preprocessing] | None = None,
        multi_label: bool | None = None,
        text_pairs: bool | None = None,
        max_tokens: int | None = None,
        onnx: str | None = None,
        refresh: bool | None = None,
    ) -> None:
        """Load a bundle, a checkpoint directory or a hub id; by default the embedded model.

        The options are the settings of these names; those that are not given come from the
        environment, as for ``sentiment classify``. A hub id (ORG/NAME, or ORG/NAME@REVISION) or a
        checkpoint is exported the first time, which needs the extra ``export``. For these only,
        ``labels`` names the outputs in logit order; ``preprocessing``, ``multi_label``,
        ``text_pairs`` and ``max_tokens`` say what the checkpoint does not; ``onnx`` is the file to
        use of several ONNX graphs; ``refresh`` fetches a hub id whose branch has moved.
        docs/models.md has more of them.

        The best plan for this machine is measured the first time, for about 2 s.

        Raises:
            ValueError: an option is not valid.
            UserError: the model or the device cannot be used, or is not what an option is for.
        """
        given = {name: value for name, value in locals().items() if value is not None}
        del given["self"]
        if model is not None:
            given["model"] = [str(model)]
        # When the main thread has ended, Python starts no threads, which measuring needs.
        measure = threading.main_thread().is_alive()
        try:
            settings = with_bundles(load_settings(given), _say)
            self._model: LocalClassifier | None = LocalClassifier(settings, measure=measure)
        except (ValueError, UserError) as error:
            error.args = (_without_flags(str(error)),)
            raise
        self._process = os.getpid()
        self._columns = self._model.columns
        self.labels = self._columns.labels

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Classifier cannot be pickled or copied; make one in each process")

    def close(self) -> None:
        """Free the model, as soon as no other thread classifies with it."""
        self._model = None

    @overload
    def classify(self, texts: Text, **options: Unpack[_Options]) -> Prediction: ...
    @overload
    def classify(self, texts: Iterable[Any], **options: Unpack[_Options]) -> Results: ...
    def classify(
        self,
        texts: Text | Iterable[Any],
        *,
        overflow: Overflow = "truncate",
        split: Split | None = None,
        language: str = "en",
        threshold: float | None = None,
    ) -> Prediction | Results:
        """Classify one text or pair of texts, or several: a list, a column or another sequence.

        The options are those of POST /classify: ``overflow`` is "truncate", "error" or "window",
        for texts of more tokens than the model takes. ``split="sentences"`` adds the result of
        each sentence; ``language`` helps to find them. ``threshold`` is the score from which on a
        multi-label model chooses a label, in the place of its bundle's.

        Among several, None, NaN and what else has no result have an error in their place. A long
        run shows a progress bar on a terminal and in a notebook, where tqdm is installed.

        Raises:
            ServiceError: the single text cannot be classified, or an option is not valid or not
                for this model; its ``code`` says why.
            UserError: the model fails on every text.
            RuntimeError: the classifier is closed, or belongs to another process.
        """
        named = {"overflow": overflow, "split": split, "language": language}
        given = {"inputs": "", **named, "threshold": threshold}  # the texts are read apart
        options = checked(given, ClassifyRequest).options
        if hasattr(texts, "columns"):
            raise TypeError(
                "this is a table; give one column of it, such as table['text'], or use add_columns"
            )
        if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
            (outcome,) = self._outcomes([_text(texts)], options)
            if isinstance(outcome, ServiceError):
                raise outcome
            return _prediction(outcome)
        index = getattr(texts, "index", None)
        outcomes = self._outcomes([*map(_text, values_of(texts))], options)
        return Results(outcomes, self._columns, None if callable(index) else index)

    def add_columns(
        self,
        table: Frame,
        column: str = "text",
        *,
        overflow: Overflow = "truncate",
        threshold: float | None = None,
    ) -> Frame:
        """The table with the columns that ``sentiment classify`` adds to a file.

        The table is a Table or RecordBatch of pyarrow, a DataFrame of pandas or polars, or a dict
        of columns; ``column`` has its texts. Rows and index stay as they are. A row that cannot be
        classified has its reason in ``error``. If the table has a column of a name, that of the
        results has "predicted_" before its name. The options are those of ``classify``.

        So it can be used with ``map_batches`` of Ray Data and polars, ``map`` of datasets with
        ``batched=True``, and within ``mapInArrow`` of Spark.

        Raises:
            TypeError: it is not such a table.
            ServiceError: an option is not valid, or not for this model.
            UserError: the table has no such column, or the model fails on every text.
            RuntimeError: the classifier is closed, or belongs to another process.
        """
        given = {"inputs": "", "overflow": overflow, "threshold": threshold}
        options = checked(given, ClassifyRequest).options
        # A batch of datasets: its writer would take the type of a column from the first batch, in
        # which all may be None. Columns of Arrow have their type.
        table = getattr(table, "pa_table", table)
        texts = [*map(_text, texts_of(table, column))]
        items = map(item, self._outcomes(texts, options))
        return with_results(table, column, self._columns, map(with_reason, texts, items))

    def _outcomes(
        self, texts: Sequence[str | TextPair | ServiceError], options: TextOptions
    ) -> list[Outcome]:
        model = self._model  # another thread may close it meanwhile
        if model is None:
            raise RuntimeError("the Classifier is closed")
        if self._process != os.getpid():
            raise RuntimeError("a Classifier is of one process; make another one after a fork")
        inputs: Sequence[Any] = texts  # also pairs, which files do not have
        rows = ((None, text, 0 if isinstance(text, ServiceError) else len(text)) for text in inputs)
        shown = "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
        with progress_bar(shown=shown, total=len(texts), after_s=BAR_AFTER_S) as advance:
            chunks = split_into_chunks(rows)
            results = model.outcomes(chunks, advance=advance, options=options)
            with closing(results):
                return [outcome for _, outcomes in results for outcome in outcomes]


def _say(words: str) -> None:
    print(_without_flags(words), file=sys.stderr)


def _without_flags(words: str) -> str:
    """A message with the names of the constructor's options in the place of the command's flags."""
    options = {option.replace("_", "-"): option for option in Classifier.__init__.__annotations__}
    options["single-label"] = "multi_label"
    return FLAG.sub(lambda found: options.get(found[1], found[0]), words)


def _text(value: Any) -> str | TextPair | ServiceError:
    if isinstance(value, ServiceError):
        return value
    if (text := text_of(value)) is not None:
        return text
    if str(value) in MISSING:
        return EmptyText("there is no text")
    return InvalidRequest(f"a text must be a string or {PAIR}")


def _result(outcome: Outcome) -> Prediction | ItemError:
    if isinstance(outcome, ServiceError):
        return ItemError(outcome.code, outcome.detail)
    return _prediction(outcome)


def _prediction(outcome: Mapping[str, Any]) -> Prediction:
    sentences = outcome.get("sentences")
    return Prediction(**{**outcome, "sentences": sentences and [*map(_sentence, sentences)]})


def _sentence(part: Mapping[str, Any]) -> Sentence | SentenceError:
    if "error" in part:
        return SentenceError(start=part["start"], end=part["end"], **part["error"])
    return Sentence(**part)
