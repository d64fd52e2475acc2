"""What Python programs use in the place of a service: a model in their own process."""

import asyncio
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, TypedDict, TypeVar, Unpack, cast, overload

from sentiment_client import (
    MISSING,
    NO_TEXT,
    ModelInfo,
    Outcome,
    Prediction,
    Results,
    Text,
    are_several,
    column_of,
    outcome_of,
    results_of,
    several,
    values_of,
    whole_table,
    with_results,
)

from sentiment_service.engine.options import Overflow, Preprocessing, Split, TextOptions
from sentiment_service.engine.text.text_tokenizer import TextPair
from sentiment_service.errors import EmptyText, InvalidRequest, ServiceError, UserError
from sentiment_service.exported_models import with_bundles
from sentiment_service.files.local import LocalClassifier
from sentiment_service.files.results import Advance, progress_bar, with_reason
from sentiment_service.files.table import split_into_chunks
from sentiment_service.requests.validation import ClassifyRequest, checked, text_of
from sentiment_service.results import Outcome as AnsweredOutcome
from sentiment_service.results import item
from sentiment_service.settings.sources import load_settings

BAR_AFTER_S = 2.0
# What standard error raises that is None, closed, or an object that a program has put there.
UNUSABLE = (AttributeError, OSError, TypeError, ValueError)
FLAG = re.compile("--([a-z]+(?:-[a-z]+)*)")
Frame = TypeVar("Frame")


class _Options(TypedDict, total=False):
    overflow: Overflow
    split: Split | None
    language: str | None
    threshold: float | None


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
        languages: str | Sequence[str] | None = None,
        onnx: str | None = None,
        refresh: bool | None = None,
    ) -> None:
        """Load a bundle, a checkpoint directory or a hub id; by default the embedded model.

        The options are the settings of these names; those that are not given come from the
        environment, as for ``sentiment classify``. A hub id (ORG/NAME, or ORG/NAME@REVISION) or a
        checkpoint is exported the first time, which needs the extra ``export``. For these only,
        ``labels`` names the outputs in logit order; ``preprocessing``, ``multi_label``,
        ``text_pairs``, ``max_tokens`` and ``languages`` say what the checkpoint does not; ``onnx``
        is the file to use of several ONNX graphs; ``refresh`` fetches a hub id whose branch has
        moved.
        docs/models.md has more of them.

        The best plan for this machine is measured the first time, for about 2 s.

        Raises:
            ValueError: an option is not valid.
            UserError: the model or the device cannot be used, or is not what an option is for.
        """
        values = {**locals()}  # a debugger may change the dictionary itself
        given = {name: value for name, value in values.items() if value is not None}
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
        columns = self._model.columns
        self.labels = columns.labels
        self._info = ModelInfo(
            labels=tuple(columns.labels), multi_label=columns.multi_label, **self._model.version
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Classifier of {self._info}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Classifier cannot be pickled or copied, so it is not for pools of processes; it "
            "uses all CPUs itself, so give it all texts at once, or make one in each process"
        )

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
        language: str | None = None,
        threshold: float | None = None,
    ) -> Prediction | Results:
        """Classify one text or pair of texts, or several: a list, a column or another sequence.

        The options are those of POST /classify: ``overflow`` is "truncate", "error" or "window",
        for texts of more tokens than the model takes. ``split="sentences"`` adds the result of
        each sentence; ``language``, a BCP 47 tag, helps to find them. ``threshold`` is the score
        from which on a multi-label model chooses a label, in the place of its bundle's.

        Among several, None, NaN and what else has no result have an error in their place. A long
        run shows a progress bar on a terminal and in a notebook, where tqdm is installed.

        Raises:
            ServiceError: the single text cannot be classified, or an option is not valid or not
                for this model; its ``code`` says why.
            TypeError: the texts are a table, or an option is not known.
            UserError: the model fails on every text.
            RuntimeError: the classifier is closed, or belongs to another process.
        """
        options = _options(overflow=overflow, split=split, language=language, threshold=threshold)
        if not are_several(texts):
            (outcome,) = self._outcomes([_text(texts)], options)
            if isinstance(outcome, ServiceError):
                raise outcome
            return cast(Prediction, outcome_of(outcome))
        outcomes = self._outcomes([*map(_text, _values(texts))], options)
        return results_of(map(outcome_of, map(item, outcomes)), texts, self._info)

    def classify_iter(self, texts: Iterable[Any], **options: Unpack[_Options]) -> Iterator[Results]:
        """The results of texts of any number, such as those of a generator, in chunks.

        Each chunk has the results of the next 2,000 texts, or of fewer that are long. While one is
        used, the texts of two more are read and computed; no more are in memory. The options and
        the errors are those of ``classify``.
        """
        return self._chunks(several(texts), _options(**options), results_of)

    @overload
    async def aclassify(self, texts: Text, **options: Unpack[_Options]) -> Prediction: ...
    @overload
    async def aclassify(self, texts: Iterable[Any], **options: Unpack[_Options]) -> Results: ...
    async def aclassify(self, texts: Any, **options: Unpack[_Options]) -> Prediction | Results:
        """The same as ``classify``, for asyncio: it computes in threads.

        If a call with several texts is cancelled, only the batches that are being computed are
        finished.
        """
        if not are_several(texts):
            return await asyncio.to_thread(lambda: self.classify(texts, **options))
        ended = threading.Event()
        chunks = self._chunks(texts, _options(**options), Results, ended)
        whole: list[Outcome] = []
        try:
            while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                whole += chunk
        finally:
            ended.set()
        return results_of(whole, texts, self._info)

    def add_columns(
        self,
        table: Frame,
        column: str = "text",
        *,
        prefix: str = "",
        overflow: Overflow = "truncate",
        threshold: float | None = None,
    ) -> Frame:
        """The table with the columns that ``sentiment classify`` adds to a file.

        The table is a Table or RecordBatch of pyarrow, a DataFrame of pandas or polars, or a dict
        of columns; ``column`` has its texts. Rows and index stay as they are. A row that cannot be
        classified has its reason in ``error``. The names of the new columns begin with ``prefix``,
        and with "predicted_", too, if the table has such a column, whatever its case. The options
        are those of ``classify``.

        Ray Data, Spark and datasets can call it; docs/python.md says how for those that pickle or
        fork.

        Raises:
            TypeError: it is not such a table.
            ServiceError: an option is not valid, or not for this model.
            UserError: the table has no such column, or the model fails on every text.
            RuntimeError: the classifier is closed, or belongs to another process.
        """
        options = _options(overflow=overflow, threshold=threshold)
        table = whole_table(table)
        try:
            values = column_of(table, column)
        except ValueError as error:
            raise UserError(str(error)) from None
        texts = [*map(_text, _values(values))]
        items = map(with_reason, texts, map(item, self._outcomes(texts, options)))
        results = results_of(map(outcome_of, items), values, self._info)
        return with_results(table, results, prefix)

    def _outcomes(
        self, texts: Sequence[str | TextPair | ServiceError], options: TextOptions
    ) -> list[AnsweredOutcome]:
        with progress_bar(shown=_shows_bars(), total=len(texts), after_s=BAR_AFTER_S) as advance:
            return [*chain.from_iterable(self._computed(texts, options, advance))]

    def _chunks(
        self,
        texts: Iterable[Any],
        options: TextOptions,
        make: Callable[..., Results],
        ended: threading.Event | None = None,
    ) -> Iterator[Results]:
        for outcomes in self._computed(map(_text, _values(texts)), options, ended=ended):
            yield make(map(outcome_of, map(item, outcomes)), None, self._info)
            make = Results  # which warns of nothing, while results_of may

    def _computed(
        self,
        texts: Iterable[str | TextPair | ServiceError],
        options: TextOptions,
        advance: Advance = lambda *_: None,
        ended: threading.Event | None = None,
    ) -> Iterator[list[AnsweredOutcome]]:
        model = self._model  # another thread may close it meanwhile
        if model is None:
            raise RuntimeError("the Classifier is closed")
        if self._process != os.getpid():
            raise RuntimeError(
                "a Classifier is of one process, and this one was forked from it: make another "
                "one here, in a pool's initializer, gunicorn's post_fork or Celery's "
                "worker_process_init, or in a function with functools.cache, which you call with "
                "os.getpid()"
            )
        inputs: Iterable[Any] = texts  # also pairs, which files do not have
        rows = ((None, text, 0 if isinstance(text, ServiceError) else len(text)) for text in inputs)
        chunks = split_into_chunks(rows)
        run = model.outcomes(chunks, advance=advance, options=options, ended=ended)
        with closing(run) as results:
            for _, outcomes in results:
                yield outcomes


def _options(
    overflow: Overflow = "truncate",
    split: Split | None = None,
    language: str | None = None,
    threshold: float | None = None,
) -> TextOptions:
    given = {**locals(), "inputs": ""}  # the texts are read apart
    return checked(given, ClassifyRequest).options


def _values(column: Any) -> Iterable[Any]:
    """What a column holds. In one of Arrow, an error stands for a row without a text."""
    if hasattr(column, "to_pylist") and hasattr(column, "type"):
        from sentiment_service.files.parquet import is_text, texts

        if is_text(column.type):  # pyarrow cannot decode it if one text is not UTF-8
            return texts(column)
    return values_of(column)


def _shows_bars() -> bool:
    try:
        return sys.stderr.isatty() or "ipykernel" in sys.modules
    except UNUSABLE:
        return False


def _say(words: str) -> None:
    with suppress(*UNUSABLE):
        sys.stderr.write(f"{_without_flags(words)}\n")


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
    return InvalidRequest(f"{NO_TEXT}, not {type(value).__name__}")
