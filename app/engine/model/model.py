"""A bundle loaded into ONNX Runtime: text → encoding → logits → scores."""

import logging
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from app.engine.machine.gpu import CUDA
from app.engine.model.batch_inputs import batch_shape, fill
from app.engine.model.bound_session import BoundSessions
from app.engine.model.bundle import Bundle, Precision
from app.engine.model.device import CPU, Device
from app.engine.model.session import Int8Kernels, int8_kernels, open_sessions
from app.engine.text.encoding import Encoding
from app.engine.text.pairs import Input, PairTokenizer, TextPair
from app.engine.text.preprocessing import fault, preprocess
from app.engine.text.text_tokenizer import TextTokenizer, load_tokenizer
from app.errors import EmptyText, InferenceFailed, InvalidRequest, ServiceError, UserError

ScoreFunction = Literal["softmax", "sigmoid"]

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
    """One variant of a bundle on one device. ``infer`` may be called from many threads."""

    def __init__(
        self,
        bundle: Bundle,
        precision: Precision,
        device: Device,
        *,
        threads: int,
        kernels: Int8Kernels | None,
        gpu_memory_mb: int,
    ) -> None:
        """Open the sessions. ``load`` chooses the variant and the device.

        Raises:
            UserError: a file is damaged, or a session cannot be opened.
        """
        file = bundle.variant_path(precision)
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
        self.device = device
        self.provider = device.provider
        self.kernels = kernels
        self.path = bundle.path
        self.sha256 = manifest.variants[precision].sha256
        self.provider_options = device.options(gpu_memory_mb)
        providers = device.providers(gpu_memory_mb)
        self._open_sessions = partial(open_sessions, file, providers, kernels=kernels)
        self.use_threads(threads)
        self._input_names = [node.name for node in self.session.get_inputs()]
        self._fill = partial(fill, pad_token_id=bundle.pad_token_id, typed=manifest.text_pairs)
        self.tokenizer = load_tokenizer(bundle.path / "tokenizer.json")
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
        cls,
        bundle: Bundle,
        *,
        device: str,
        precision: Precision | Literal["auto"],
        threads: int,
        gpu_memory_mb: int = 0,
    ) -> "Model":
        """Open a session with ``threads`` intra-op threads per batch (0: one per core).

        The device ``auto`` means: the first GPU if CUDA works and the bundle has a variant for it,
        else the CPU. ``Device.of`` knows the other devices. The precision ``auto`` means: the
        variant that was made for the device. ``gpu_memory_mb`` limits the memory of each session on
        a GPU; 0 means: no limit.

        Raises:
            UserError: a file is damaged, the variant is not in the bundle, its output does
                not fit the labels, or CUDA was requested and cannot be used.
        """
        load = partial(
            cls.load, bundle, precision=precision, threads=threads, gpu_memory_mb=gpu_memory_mb
        )
        if device == "auto":
            # The package for CPUs is no reason for a warning: nobody expects a GPU of it.
            if CUDA in ort.get_available_providers() and precision != "int8":
                try:
                    return load(device="cuda")
                except UserError as error:
                    logger.warning("serving on the CPU: %s", error)
            return load(device="cpu")
        place = Device.of(device)
        place.check()
        chosen = _preferred(bundle, place.provider) if precision == "auto" else precision
        kernels = int8_kernels() if chosen == "int8" and not place.gpus else None
        model = cls(
            bundle, chosen, place, threads=threads, kernels=kernels, gpu_memory_mb=gpu_memory_mb
        )
        outputs = model.session.get_outputs()[0].shape[-1]
        if outputs != len(model.labels):
            raise UserError(
                f"bundle {bundle.path}: the {chosen} model has {outputs} outputs, but the "
                f"manifest has {len(model.labels)} labels"
            )
        return model

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
        other.use_threads(threads)
        return other

    def use_threads(self, threads: int) -> None:
        """Open the sessions, with ``threads`` intra-op threads per batch.

        Raises:
            UserError: a session cannot be opened.
        """
        self.threads = threads
        sessions = self._open_sessions(threads=threads)
        self.session = sessions[0]
        self._bound = (
            BoundSessions(sessions, self.device.gpus, SILENT) if self.device.gpus else None
        )

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
        faults = [*map(fault, texts)]
        sound = [
            preprocess(text, self.preprocessing)
            for text, one in zip(texts, faults, strict=True)
            if one is None
        ]
        found = iter(self.texts.encode(sound))
        return [one or next(found) for one in faults]

    def _encode_pair(self, pair: TextPair) -> Encoding | EmptyText | InvalidRequest:
        if self.pairs is None:
            return InvalidRequest(
                f"the model {self.name} takes single texts, so leave out text_pair; a model that "
                "was trained on pairs must be exported with --text-pairs"
            )
        if found := fault(pair.text) or fault(pair.text_pair, "text_pair"):
            return found
        return self.pairs.encode(pair.map(partial(preprocess, preprocessing=self.preprocessing)))

    def infer(self, encodings: Sequence[Encoding]) -> list[Logits | InferenceFailed]:
        """Logits [labels] for each encoding, computed as one padded batch.

        A text whose logits are not finite gets an error; the other texts get their logits.
        """
        if self._bound is None:
            (logits,) = self.session.run(None, self.feeds(encodings), SILENT)
        else:
            logits = self._bound.run(*batch_shape(encodings), partial(self._fill, encodings))
        finite = np.isfinite(logits).all(axis=1)
        return [
            row if ok else InferenceFailed("the model gave no finite logits for this text")
            for row, ok in zip(logits, finite, strict=True)
        ]

    def feeds(self, encodings: Sequence[Encoding]) -> dict[str, NDArray[np.int64]]:
        """The session's inputs, each of shape [texts, tokens of the longest text]."""
        shape = batch_shape(encodings)
        feeds = {name: np.empty(shape, dtype=np.int64) for name in self._input_names}
        self._fill(encodings, feeds)
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


def _preferred(bundle: Bundle, provider: str) -> Precision:
    wanted = _VARIANTS[provider]
    return next((p for p in wanted if p in bundle.manifest.variants), wanted[-1])
