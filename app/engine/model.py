"""A bundle loaded into ONNX Runtime: text → encoding → logits → scores."""

import logging
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.engine.bundle import Bundle, Precision
from app.engine.encoding import Encoding
from app.engine.pairs import Input, PairTokenizer, TextPair
from app.engine.preprocessing import VISIBLE, preprocess
from app.engine.session import CPU, CUDA, NO_CUDA, Int8Kernels, int8_kernels, open_session
from app.engine.text_tokenizer import TextTokenizer
from app.errors import EmptyText, InferenceFailed, InvalidRequest, ServiceError, UserError

Device = Literal["auto", "cpu", "cuda"]

# The precisions that `auto` tries on each provider, best first.
_VARIANTS: dict[str, tuple[Precision, ...]] = {CPU: ("int8", "fp32"), CUDA: ("fp16", "fp32")}
# The share of a window's tokens that the next window repeats, so that each token has context.
WINDOW_OVERLAP = 0.25
# A failed inference raises an error. By default ONNX Runtime also writes the error to standard
# error, outside the service's log and without its format. If nothing reads standard error any
# more, the runner would block there.
SILENT = ort.RunOptions()
SILENT.log_severity_level = 4

logger = logging.getLogger(__name__)
Logits = np.ndarray[tuple[int], np.dtype[np.float32]]


class Model:
    """One variant of a bundle in one session. ``infer`` may be called from many threads."""

    def __init__(
        self,
        bundle: Bundle,
        precision: Precision,
        session: ort.InferenceSession,
        *,
        threads: int,
        kernels: Int8Kernels | None,
    ) -> None:
        manifest = bundle.manifest
        self.name = manifest.name
        self.revision = manifest.source.revision
        self.labels = manifest.labels
        self.max_tokens = manifest.max_tokens
        self.preprocessing = manifest.preprocessing
        self.multi_label = bundle.multi_label
        self.text_pairs = manifest.text_pairs
        self.parity = manifest.variants[precision].parity
        self.calibration = manifest.variants[precision].calibration
        self.temperature = self.calibration.temperature if self.calibration else 1.0
        self.precision = precision
        self.provider: str = session.get_providers()[0]
        self.threads = threads
        self.kernels = kernels
        self.path = bundle.path
        self.sha256 = manifest.variants[precision].sha256
        self._file = bundle.path / manifest.variants[precision].file
        self.session = session
        self._input_names = [node.name for node in session.get_inputs()]
        self._pad_token_id = bundle.pad_token_id
        self.tokenizer = _load_tokenizer(bundle)
        special_tokens = self.tokenizer.num_special_tokens_to_add(is_pair=False)
        stride = int((self.max_tokens - special_tokens) * WINDOW_OVERLAP)
        side = (self.tokenizer.truncation or {}).get("direction", "right")
        self.tokenizer.enable_truncation(self.max_tokens, stride=stride, direction=side)
        self.texts = TextTokenizer(self.tokenizer, max_tokens=self.max_tokens, stride=stride)
        self.pairs: PairTokenizer | None = None
        if self.text_pairs:
            self.pairs = PairTokenizer(
                self.tokenizer,
                max_tokens=self.max_tokens,
                stride=stride,
                has_types="token_type_ids" in self._input_names,
            )

    @classmethod
    def load(
        cls, bundle: Bundle, *, device: Device, precision: Precision | Literal["auto"], threads: int
    ) -> "Model":
        """Open a session with ``threads`` intra-op threads per batch (0: one per core).

        The device ``auto`` means: CUDA if it works and the bundle has a variant for it, else the
        CPU. The precision ``auto`` means: the variant that was made for the device.

        Raises:
            UserError: a file is damaged, the variant is not in the bundle, its output does
                not fit the labels, or CUDA was requested and cannot be used.
        """
        if device == "auto":
            cuda = CUDA in ort.get_available_providers() and precision != "int8"
            if cuda and not bundle.manifest.variants.keys().isdisjoint(_VARIANTS[CUDA]):
                try:
                    return cls.load(bundle, device="cuda", precision=precision, threads=threads)
                except UserError as error:
                    logger.warning("serving on the CPU: %s", error)
            return cls.load(bundle, device="cpu", precision=precision, threads=threads)
        provider = CUDA if device == "cuda" else CPU
        chosen = _preferred(bundle, provider) if precision == "auto" else precision
        if provider not in ort.get_available_providers():
            raise UserError(NO_CUDA)
        kernels = int8_kernels() if chosen == "int8" and provider == CPU else None
        path = bundle.variant_path(chosen)
        session = open_session(path, provider, threads=threads, kernels=kernels)
        outputs = session.get_outputs()[0].shape[-1]
        if outputs != len(bundle.manifest.labels):
            raise UserError(
                f"bundle {bundle.path}: the {chosen} model has {outputs} outputs, but the "
                f"manifest has {len(bundle.manifest.labels)} labels"
            )
        return cls(bundle, chosen, session, threads=threads, kernels=kernels)

    @property
    def batch_invariant(self) -> Literal[True] | None:
        """Whether a text's logits are the same to the last bit in every batch; None: not measured.

        Tests compare the bits for fp32 and int8 on CPUs.
        """
        return True if self.provider == CPU and self.precision != "fp16" else None

    def with_threads(self, threads: int) -> "Model":
        """The same model with ``threads`` intra-op threads per batch."""
        if threads == self.threads:
            return self
        other = copy(self)
        other.threads = threads
        other.session = open_session(
            self._file, self.provider, threads=threads, kernels=self.kernels
        )
        return other

    def encode(self, text: Input) -> Encoding:
        """Tokenise one text or pair, keeping at most ``max_tokens`` tokens of it.

        Raises:
            EmptyText: the text has nothing to classify.
            InvalidRequest: the text is not well-formed Unicode or contains a NUL character, or it
                is a pair and the model takes single texts.
        """
        (outcome,) = self.encode_batch([text])
        if isinstance(outcome, ServiceError):
            raise outcome
        return outcome

    def encode_batch(self, texts: Sequence[Input]) -> list[Encoding | EmptyText | InvalidRequest]:
        """Tokenise many texts. A text's error, which ``encode`` would raise, takes its place.

        Other threads can run meanwhile, because the tokenizer releases Python's global lock.
        """
        single = [text for text in texts if isinstance(text, str)]
        if len(single) == len(texts):
            return self._encode_single(single)
        encoded = iter(self._encode_single(single))
        return [
            next(encoded) if isinstance(text, str) else self._encode_pair(text) for text in texts
        ]

    def _encode_single(self, texts: Sequence[str]) -> list[Encoding | EmptyText | InvalidRequest]:
        faults = [*map(_fault, texts)]
        sound = [
            preprocess(text, self.preprocessing)
            for text, fault in zip(texts, faults, strict=True)
            if fault is None
        ]
        found = iter(self.texts.encode(sound))
        return [fault or next(found) for fault in faults]

    def _encode_pair(self, pair: TextPair) -> Encoding | EmptyText | InvalidRequest:
        if self.pairs is None:
            return InvalidRequest(
                f"the model {self.name} takes single texts, so leave out text_pair; a model that "
                "was trained on pairs must be exported with --text-pairs"
            )
        if fault := _fault(pair.text) or _fault(pair.text_pair, "text_pair"):
            return fault
        return self.pairs.encode(pair.map(partial(preprocess, preprocessing=self.preprocessing)))

    def infer(self, encodings: Sequence[Encoding]) -> list[Logits | InferenceFailed]:
        """Logits [labels] for each encoding, computed as one padded batch.

        A text whose logits are not finite gets an error; the other texts get their logits.
        """
        (logits,) = self.session.run(None, self.feeds(encodings), SILENT)
        finite = np.isfinite(logits).all(axis=1)
        return [
            row if ok else InferenceFailed("the model gave no finite logits for this text")
            for row, ok in zip(logits, finite, strict=True)
        ]

    def feeds(self, encodings: Sequence[Encoding]) -> dict[str, NDArray[np.int64]]:
        """The session's inputs, each of shape [texts, tokens of the longest text]."""
        shape = (len(encodings), max(len(encoding) for encoding in encodings))
        ids = np.full(shape, self._pad_token_id, dtype=np.int64)
        mask = np.zeros(shape, dtype=np.int64)
        for row, encoding in enumerate(encodings):
            ids[row, : len(encoding)] = encoding.ids
            mask[row, : len(encoding)] = 1
        feeds = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._input_names:
            feeds["token_type_ids"] = types = np.zeros(shape, dtype=np.int64)
            if self.text_pairs:
                for row, encoding in enumerate(encodings):
                    types[row, len(encoding) - encoding.typed : len(encoding)] = 1
        return feeds

    def scores(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Softmax of logits [..., labels], or their sigmoid for a multi-label checkpoint.

        The logits of a calibrated variant are divided by its temperature first.
        """
        scores: NDArray[np.float32]
        logits = logits / self.temperature
        if self.multi_label:
            scores = np.exp(-np.logaddexp(0, -logits))  # sigmoid that cannot overflow
        else:
            exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
            scores = exponentials / exponentials.sum(axis=-1, keepdims=True)
        return scores


def _fault(text: str, name: str = "the text") -> EmptyText | InvalidRequest | None:
    """The reason why a text cannot be tokenised, or None if it can. Errors call it ``name``."""
    if "\0" in text:
        return InvalidRequest(f"{name} holds a NUL character (U+0000); remove it")
    if not VISIBLE.search(text):
        return EmptyText(f"{name} is empty or blank; send at least one visible character")
    try:
        text.encode()  # before the normalisation, which may drop the ill-formed part
    except UnicodeEncodeError:
        return InvalidRequest(
            f"{name} holds half of a surrogate pair, so it is not well-formed Unicode"
        )
    return None


def _preferred(bundle: Bundle, provider: str) -> Precision:
    wanted = _VARIANTS[provider]
    return next((p for p in wanted if p in bundle.manifest.variants), wanted[-1])


def _load_tokenizer(bundle: Bundle) -> Tokenizer:
    path = bundle.path / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise UserError(f"cannot load {path}: {error}") from error
    tokenizer.no_padding()
    return tokenizer
