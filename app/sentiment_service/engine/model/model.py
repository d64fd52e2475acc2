"""A bundle in ONNX Runtime: from encodings to logits and scores, and from these to predictions."""

import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from itertools import islice
from typing import Annotated, Literal, cast

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from sentiment_service.engine.model.bundle import Bundle, Evaluation, Precision, is_sentiment
from sentiment_service.engine.model.device import CPU, Device
from sentiment_service.engine.model.sessions import Replicas, device_error, flat_feeds, open_session
from sentiment_service.engine.options import TextOptions
from sentiment_service.engine.text.input_tokenizer import (
    EncodedSentence,
    EncodedText,
    InputTokenizer,
)
from sentiment_service.engine.text.text_tokenizer import ID_BYTES, Encoding
from sentiment_service.errors import InferenceFailed, InvalidRequest, ServiceError, UserError
from sentiment_service.results import FailedSentence, Outcome, Prediction, Sentence, item

# The largest difference of a logit that is allowed, for logits of up to USUAL_LOGIT.
TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "fp16": 0.1, "int8": 0.5}
# Rounding grows with the logits. The tolerance holds for logits of up to this size, as they are
# usual, and grows in proportion for larger ones.
USUAL_LOGIT = 3.0
# A text is decided if its best logit exceeds the second best by more than this. Where it is not,
# rounding may change the label.
DECIDED_BY = 0.1
# What is computed in both ways.
TEXTS = (
    "ok",
    "I love this!",
    "worst service ever",
    "The meeting is at 3pm.",
    "meh",
    "Not bad at all, honestly better than I expected 😀",
    "@user thanks for nothing, my order never arrived http",
    "Qué día tan bonito, me encanta esta ciudad ❤️",
    "Das Essen war kalt und der Kellner unfreundlich.",
    "Le train part à huit heures de la gare du Nord.",
    "O jogo foi horrível, perdemos tudo outra vez",
    "Che bello rivedervi tutti domani!",
    "यह फिल्म बहुत अच्छी थी",
    "الخدمة سيئة جدا ولن أعود",
    "So the update broke my phone twice in one week. Great job. Really. 👏👏",
    "Tickets for the Friday show go on sale tomorrow morning at nine, doors open at seven.",
    "I waited forty minutes on the phone only to be told that I had the wrong department.",
    "Drove up the coast, windows down, swam until sunset: not been this happy for a long time",
    "The committee publishes its report on the second of May; copies can be had by letter.",
)


def tolerance(precision: Precision, expected: NDArray[np.float32]) -> float:
    """The largest difference from the logits ``expected`` that is allowed for this precision."""
    return TOLERANCE[precision] * max(1.0, float(np.abs(expected).max()) / USUAL_LOGIT)


def decided(expected: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows of logits [texts, labels] are decided; with one label, all are."""
    ordered = np.sort(expected, axis=1)
    enough: NDArray[np.bool_] = (
        ordered[:, -1] - ordered[:, :-1].max(1, initial=-np.inf) > DECIDED_BY
    )
    return enough


# A failed inference raises an error. By default ONNX Runtime also writes the error to standard
# error, outside the service's log and without its format. If nothing reads standard error any
# more, the runner would block there.
SILENT = ort.RunOptions()
SILENT.log_severity_level = 4

Ids = NDArray[np.int64] | NDArray[np.int32]
Logits = np.ndarray[tuple[int], np.dtype[np.float32]]
Scored = tuple[list[float], list[float]]  # logits and scores, in the order of the labels

ScoreFunction = Literal["softmax", "sigmoid"]


class ModelVersion(TypedDict):
    """What tells a served model from others, also of the same name."""

    name: Annotated[str, Field(description="what requests may send as `model`")]
    revision: Annotated[
        str | None, Field(description="resolved commit of the checkpoint, if it came from a hub")
    ]
    precision: Annotated[Precision, Field(description="number format of its weights")]
    digest: Annotated[
        str,
        Field(description="SHA-256 of its manifest.json: the same in all answers of one bundle"),
    ]


class Model:
    """One variant of a bundle on one device, with the tokenizer that makes its encodings.

    ``infer`` may be called from many threads. ``load_model`` chooses the variant and the device.
    """

    def __init__(
        self,
        bundle: Bundle,
        precision: Precision,
        device: Device,
        *,
        threads: int,
        gpu_memory_mb: int,
        name: str | None,
    ) -> None:
        self._file = bundle.variant_path(precision)
        manifest = bundle.manifest
        self.name = name or manifest.name
        self.renamed = bool(name)
        self.revision = manifest.source.revision
        self.labels = manifest.labels
        self.is_sentiment = is_sentiment(self.labels)
        self.max_tokens = manifest.max_tokens
        self.preprocessing = manifest.preprocessing
        self.multi_label = bundle.multi_label
        self.thresholds = {
            label: manifest.thresholds.get(label, manifest.threshold) for label in self.labels
        }
        varies = manifest.variants[precision].batch_invariant is False
        self._exact = precision != "fp16" and not bundle.convolves and not varies
        self.text_pairs = manifest.text_pairs
        self.language = manifest.language
        self.languages = manifest.languages or ([self.language] if self.language else [])
        self.parity = manifest.variants[precision].parity
        self.calibration = manifest.variants[precision].calibration
        self.evaluation = Evaluation.of(manifest.variants[precision].accuracy)
        self.temperature = self.calibration.temperature if self.calibration else 1.0
        self.precision = precision
        self.device = device
        self.provider = device.provider
        self.path = bundle.path
        self.sha256 = manifest.variants[precision].sha256
        self.digest = bundle.digest
        self.version: ModelVersion = {  # for answers, which all have it
            "name": self.name,
            "revision": self.revision,
            "precision": precision,
            "digest": self.digest,
        }
        self.provider_options = device.options(gpu_memory_mb)
        self._providers = device.providers(gpu_memory_mb)
        self.use_threads(threads)
        outputs = self.session.get_outputs()[0].shape[-1]
        if outputs != len(self.labels):
            raise UserError(
                f"bundle {bundle.path}: the {precision} model has {outputs} outputs, but the "
                f"manifest has {len(self.labels)} labels"
            )
        self._inputs = [node.name for node in self.session.get_inputs()]
        self.flat = "token_offset" in self._inputs
        self._metadata = self.session.get_modelmeta().custom_metadata_map
        self._pad_token_id = bundle.pad_token_id
        self.tokenizer = InputTokenizer(
            bundle.path,
            max_tokens=self.max_tokens,
            preprocessing=self.preprocessing,
            text_pairs=self.text_pairs,
            has_types="token_type_ids" in self._inputs,
            model=self.name,
            languages=self.languages,
        )

    @property
    def short_digest(self) -> str:
        return f"digest {self.digest[:12]}"

    @property
    def batch_invariant(self) -> Literal[True] | None:
        """Whether a text's logits are the same to the last bit in every batch; None: unknown or no.

        Tests compare the bits for fp32 and int8 on x86 CPUs; of other graphs, an export does.
        """
        exact = self.provider == CPU and self._exact
        return True if exact and platform.machine() == "x86_64" else None

    def with_threads(self, threads: int) -> "Model":
        """The same model with ``threads`` intra-op threads per batch."""
        if threads == self.threads:
            return self
        other = copy(self)
        other.use_threads(threads)
        return other

    def use_threads(self, threads: int) -> None:
        """Open the sessions, with ``threads`` intra-op threads per batch."""
        self.threads = threads
        sessions = [
            open_session(self._file, provider, threads=threads) for provider in self._providers
        ]
        self.session = sessions[0]
        self._replicas = Replicas(sessions) if len(sessions) > 1 else None

    def check(self, options: TextOptions) -> None:
        """Raise ``InvalidRequest`` if an option has no meaning for the model."""
        if options.threshold is not None and not self.multi_label:
            raise InvalidRequest(
                f"threshold is for multi-label models; {self.name} gives each text one label"
            )

    def chosen(self, scores: Iterable[float], threshold: float | None = None) -> list[str]:
        """The labels of a multi-label model whose scores are high enough: at or above a threshold.

        Without a threshold for all, each label has its own.
        """
        return [
            label
            for (label, least), score in zip(self.thresholds.items(), scores, strict=True)
            if score >= (least if threshold is None else threshold)
        ]

    def compute(self, encodings: Sequence[Encoding]) -> list[Scored | ServiceError]:
        """Logits and scores of each encoding, computed as one batch.

        Raises:
            OutOfMemory: the batch needs more memory than there is.
            DeviceLost: no further batch can be computed.
        """
        try:
            logits = self.infer(encodings)
        except Exception as error:
            if (known := device_error(error)) is not None:
                raise known from error
            raise
        rows = [row for row in logits if not isinstance(row, ServiceError)]
        # Compute all scores at once. One at a time, they would take longer than the rest of a short
        # answer.
        values = np.array(rows, dtype=np.float32).reshape(-1, len(self.labels))
        scored = zip(values.tolist(), self.scores(values).tolist(), strict=True)
        return [row if isinstance(row, ServiceError) else next(scored) for row in logits]

    def infer(self, encodings: Sequence[Encoding]) -> list[Logits | InferenceFailed]:
        """Logits [labels] for each encoding, computed as one padded batch.

        A text whose logits are not finite gets an error; the other texts get their logits.
        """
        feeds = self.feeds(encodings)
        with self._free_session() as session:
            (logits,) = session.run(None, feeds, SILENT)
        finite = np.isfinite(logits).all(axis=1)
        return [
            row if ok else InferenceFailed("the model gave no finite logits for this text")
            for row, ok in zip(logits, finite, strict=True)
        ]

    def _free_session(self) -> AbstractContextManager[ort.InferenceSession]:
        """A session for one batch; of several, the least busy."""
        return nullcontext(self.session) if self._replicas is None else self._replicas.session()

    def feeds(self, encodings: Sequence[Encoding]) -> dict[str, Ids]:
        """The session's inputs, each of shape [texts, tokens of the longest text], or flat."""
        # All ids at once: one text after the other would take ten times as long.
        packed = [encoding.packed_ids for encoding in encodings]
        lengths = np.array([len(ids) for ids in packed], np.int32) // ID_BYTES
        ids = np.frombuffer(b"".join(packed), np.int32)
        typed = np.array([encoding.typed for encoding in encodings], np.int32)
        if self.flat:
            every = flat_feeds(ids, lengths, typed, self._metadata)
            return {name: every[name] for name in self._inputs}
        columns = np.arange(lengths.max())
        real = columns < lengths[:, np.newaxis]
        feeds: dict[str, Ids] = {}
        for name in self._inputs:
            if name == "input_ids":
                feeds[name] = np.full(real.shape, self._pad_token_id)
                feeds[name][real] = ids
            elif name == "attention_mask":
                feeds[name] = real.astype(np.int64)
            else:  # token types
                feeds[name] = np.zeros(real.shape, np.int64)
                if self.text_pairs:
                    feeds[name][real & (columns >= (lengths - typed)[:, np.newaxis])] = 1
        return feeds

    def scores(
        self, logits: NDArray[np.float32], function: ScoreFunction | None = None
    ) -> NDArray[np.float32]:
        """Softmax or sigmoid of logits [..., labels], or as the checkpoint was trained if None.

        The logits of a calibrated variant are divided by its temperature first.
        """
        scores: NDArray[np.float32]
        logits = logits / self.temperature
        if (function or ("sigmoid" if self.multi_label else "softmax")) == "sigmoid":
            scores = np.exp(-np.logaddexp(0, -logits))  # sigmoid that cannot overflow
        else:
            exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
            scores = exponentials / exponentials.sum(axis=-1, keepdims=True)
        return scores


def outcomes_of(
    model: Model,
    texts: Sequence[EncodedText | ServiceError],
    results: Sequence[Scored | ServiceError],
) -> list[Outcome]:
    """The outcome of each text. ``results`` has one result for each of ``encodings(texts)``."""
    remaining = iter(results)
    return [
        text if isinstance(text, ServiceError) else _prediction(model, text, remaining)
        for text in texts
    ]


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
    if model.is_sentiment:
        by_label = prediction["scores"]
        prediction["polarity"] = by_label["positive"] - by_label["negative"]
    if model.multi_label:
        prediction["labels"] = model.chosen(scores, text.options.threshold)
    if text.options.overflow == "window":
        prediction["truncated"] = False
        prediction["windows"] = len(windows)
    if text.warnings:
        prediction["warnings"] = [*text.warnings]
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
    part = {"start": sentence.start, "end": sentence.end, **item(outcome)}
    return cast(Sentence | FailedSentence, part)


def _mean(model: Model, windows: Sequence[Encoding], scored: Sequence[Scored]) -> Scored:
    """One text's logits and scores. Its logits are the mean of its windows', weighted by tokens."""
    logits = np.average([logits for logits, _ in scored], axis=0, weights=[*map(len, windows)])
    scores = model.scores(logits.astype(np.float32))
    return logits.tolist(), scores.tolist()
