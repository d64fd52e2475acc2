"""A bundle on disk: its manifest, its files, and the check that they fit together."""

import hashlib
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import from_json  # limits nesting depth; json relies on the interpreter's stack

from sentiment_service.engine.options import Preprocessing
from sentiment_service.errors import UserError, first_line

# Since 2, int8 weights are within -64...64, so that no CPU's products saturate.
FORMAT_VERSION: Final = 2
MANIFEST = "manifest.json"
# Files that every bundle has besides its variants. The manifest lists their digests, too.
SIDE_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
CACHED = "models--"  # how a hub cache names a model's directory: models--ORG--NAME
EMBEDDED_BUNDLE = Path(__file__).resolve().parents[2] / "models/minilm-l6-tweet-sentiment"

Precision = Literal["fp32", "fp16", "int8"]
ReferenceKind = Literal["pytorch", "fp32", "onnx"]
CalibrationLoss = Literal["log", "brier"]
# Most tweets have 16 to 48 tokens; the embedded model and RoBERTa read at most 512.
TEXT_TOKENS = (8, 16, 24, 32, 48, 64, 128, 512)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Parity(_Record):
    """How far a variant's outputs are from the PyTorch checkpoint's, on ``samples`` texts."""

    samples: int = Field(description="texts that were compared")
    max_abs_logit_diff: float = Field(description="the largest difference of two logits")
    label_agreement: float = Field(description="share of texts with the same label, from 0 to 1")


class BeforeAfter(_Record):
    """A figure of the scores without and with calibration."""

    before: float = Field(description="without calibration")
    after: float = Field(description="with calibration")


class Calibration(_Record):
    """What makes scores match how often they are right: the logits are divided by ``temperature``.

    Guo et al. 2017 (arXiv:1706.04599). ``after`` is cross-validated: each text is scored with a
    temperature fitted on the other ``folds`` - 1 folds.
    """

    method: Literal["temperature"] = Field(default="temperature", description="temperature scaling")
    temperature: float = Field(ge=0.01, le=100, description="what the logits are divided by")
    loss: CalibrationLoss = Field(description="what the temperature minimises")
    texts: int = Field(description="labelled texts on which it was fitted")
    sha256: str = Field(description="digest of their file")
    folds: int = Field(description="folds of the cross-validation")
    ece: BeforeAfter = Field(description="expected calibration error (15 equal-width bins)")
    log_loss: BeforeAfter = Field(description="mean log loss in nats")

    def line(self) -> str:
        return (
            f"temperature {self.temperature:.4f}; ECE {self.ece.before:.4f} → "
            f"{self.ece.after:.4f}, log loss {self.log_loss.before:.4f} → "
            f"{self.log_loss.after:.4f} ({self.texts} texts, {self.folds}-fold cross-validated)"
        )


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\\" in name:
        raise ValueError("must be a path inside of the bundle")
    return name


class DataFile(_Record):
    """A file of the bundle. ``file`` is its path, relative to the manifest's directory."""

    file: Annotated[str, AfterValidator(_inside)]  # a manifest may be anyone's
    sha256: str
    bytes: int


# An evaluation's buckets of lengths; the last is for what fits in none.
LENGTHS = (*map(str, TEXT_TOKENS), "more")


class Evaluation(_Record):
    """What an evaluation says of its texts, if it does: the manifest may be anyone's.

    ``confusion[i][j]`` counts those of label i that were predicted as label j. ``lengths`` counts
    them by the least of ``TEXT_TOKENS`` that they fit in. The model does not know
    ``unknown_tokens`` of their ``tokens``.
    """

    labels: list[str] = []
    confusion: list[list[NonNegativeFloat]] = []
    lengths: dict[str, NonNegativeFloat] = dict.fromkeys(LENGTHS, 0)
    tokens: NonNegativeFloat = 0
    unknown_tokens: NonNegativeFloat = 0

    @field_validator("lengths")
    @classmethod
    def _in_order(cls, lengths: dict[str, float]) -> dict[str, float]:
        if lengths.keys() != {*LENGTHS}:
            raise ValueError("must have the buckets of this version")
        return {name: lengths[name] for name in LENGTHS}

    @model_validator(mode="after")
    def _square(self) -> "Evaluation":
        if any(len(row) != len(self.labels) for row in self.confusion):
            raise ValueError("each row of confusion must have a count for each label")
        return self

    @classmethod
    def of(cls, accuracy: object) -> "Evaluation":
        with suppress(ValidationError):
            return cls.model_validate(accuracy or {})
        return cls()

    @property
    def shares(self) -> dict[str, float]:
        """The share of each label in what was predicted; empty if unknown."""
        predicted = [*map(sum, zip(*self.confusion, strict=True))]
        named = zip(self.labels, predicted, strict=False)
        return {label: count / sum(predicted) for label, count in named if sum(predicted)}


class Variant(DataFile):
    """One ONNX file, listed in the manifest after it was verified.

    ``data`` is a second file with the weights, if they exceed the 2 GB limit of a protobuf file.
    ``passes`` says in plain words what the exporter did to the graph; older manifests lack it.
    ``batch_invariant`` is measured of fp32 and int8 graphs that come from elsewhere: whether every
    text's logits had the same bits alone and in a batch.
    """

    passes: list[str] = []
    data: DataFile | None = None
    batch_invariant: bool | None = None
    parity: Parity | None = None
    accuracy: dict[str, Any] | None = None
    calibration: Calibration | None = None

    @property
    def total_bytes(self) -> int:
        """The size in bytes of the ONNX file and of its separate weights, if any."""
        return self.bytes + (self.data.bytes if self.data is not None else 0)


class HubCommit(_Record):
    """A commit of a repository on the hub, and when it was made (ISO 8601), if that is known."""

    repo_id: str | None = None
    revision: str | None = None
    date: str | None = None


class CheckpointSource(HubCommit):
    """Where the checkpoint came from. ``files`` maps the names of its files to their SHA-256."""

    path: str | None = None
    files: dict[str, str]


class Manifest(_Record):
    """``manifest.json``: what the bundle is, what it holds and where it came from.

    ``text_pairs`` says whether the model was trained on pairs of texts, ``language`` on texts
    of which language (a BCP 47 tag), if it was one, ``languages`` of which, if it was several.
    ``notes`` are sentences on what the export decided by itself; one that begins with "warning"
    asks for an option. ``fetched`` is the repository from which this bundle itself came.
    ``threshold`` is the score from which on a text has a label of a multi-label model;
    ``thresholds`` has those of labels that differ. ``reference`` is what the variants were
    compared with: the checkpoint in PyTorch, the bundle's own fp32 graph, or the ONNX graph
    that was the source. ``distilled`` says what a distilled model learnt from, and how well.
    """

    format_version: Literal[1, 2]
    name: str = Field(min_length=1, max_length=255)
    source: CheckpointSource
    architecture: str
    labels: list[str] = Field(min_length=1)
    max_tokens: int = Field(gt=2, le=1_000_000)
    preprocessing: Preprocessing
    text_pairs: bool = False
    language: str | None = None
    languages: list[str] = []
    notes: list[str] = []
    fetched: HubCommit | None = None
    threshold: float = Field(default=0.5, ge=0, le=1)
    thresholds: dict[str, Annotated[float, Field(ge=0, le=1)]] = {}
    reference: ReferenceKind | None = None
    distilled: dict[str, Any] | None = None
    variants: dict[Precision, Variant] = Field(min_length=1)
    files: dict[str, str]
    created_with: dict[str, str]


class Bundle:
    """A directory with a valid manifest. The digest of a file is checked before it is used.

    ``digest`` is the SHA-256 of the manifest's file: the identity of what is served.
    """

    def __init__(
        self, path: Path, manifest: Manifest, config: dict[str, Any], digest: str = ""
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.digest = digest
        self.pad_token_id: int = config.get("pad_token_id") or 0
        self.multi_label = config.get("problem_type") == "multi_label_classification"
        # A convolution of DeBERTa-v2: ONNX Runtime adds in an order that the padding changes.
        self.convolves = bool(config.get("conv_kernel_size"))

    @classmethod
    def open(cls, path: Path) -> "Bundle":
        manifest, digest = _read_manifest(path)
        for name in SIDE_FILES:
            if name not in manifest.files:
                raise UserError(f"{path / MANIFEST} does not list {name}")
            _check_digest(path, name, manifest.files[name])
        try:
            config = from_json((path / "config.json").read_bytes())
            labels = [config["id2label"][str(index)] for index in range(len(config["id2label"]))]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path / 'config.json'} has no usable id2label: {error!r}") from error
        if labels != manifest.labels:
            raise UserError(
                f"bundle {path} contradicts itself: {MANIFEST} has the labels "
                f"{manifest.labels}, but config.json has {labels}"
            )
        if len({*labels}) < len(labels):  # answers name scores by their labels
            raise UserError(f"{path / MANIFEST}: labels: two outputs have one name: {labels}")
        if unknown := sorted({*manifest.thresholds} - {*labels}):
            raise UserError(f"{path / MANIFEST}: thresholds: no label is called {unknown[0]}")
        return cls(path, manifest, config, digest)

    def variant_path(self, precision: Precision) -> Path:
        """The path of a variant's ONNX file, which has been checked and can be opened."""
        path, data = self.check(precision), self.manifest.variants[precision].data
        if data is not None and not path.with_name(PurePosixPath(data.file).name).is_file():
            raise UserError(
                f"bundle {self.path} is one of links to other names, by which ONNX Runtime does "
                f"not find {data.file}: give --model ORG/NAME, or a copy that "
                "sentiment-export ORG/NAME --output DIR makes"
            )
        return path

    def check(self, precision: Precision) -> Path:
        """Check the digest of a variant's ONNX file and of its weights, and return its path."""
        variant = self.manifest.variants.get(precision)
        if variant is None:
            held = ", ".join(sorted(self.manifest.variants))
            raise UserError(f"bundle {self.path} has no {precision} variant; it holds: {held}")
        if precision == "int8" and self.manifest.format_version < FORMAT_VERSION:
            raise UserError(
                f"bundle {self.path} has an int8 variant of format_version 1, which is wrong on "
                f"some CPUs; {self._instead_of_int8()}"
            )
        if variant.data is not None:
            _check_digest(self.path, variant.data.file, variant.data.sha256)
        return _check_digest(self.path, variant.file, variant.sha256)

    def _instead_of_int8(self) -> str:
        """What works wherever the checkpoint is now, and gives the same answers."""
        made, source = self.manifest, self.manifest.source
        if made.name == EMBEDDED_BUNDLE.name and {*made.variants} == {"int8"}:
            return "leave out --model: the service has this model"
        words = ["sentiment-export", source.repo_id or "CHECKPOINT", "--output", "DIR"]
        if source.repo_id and source.revision:
            words += ["--revision", source.revision]
        if not any("," in label for label in made.labels):
            words += ["--labels", ",".join(made.labels)]
        words += ["--preprocessing", made.preprocessing, "--max-tokens", str(made.max_tokens)]
        again = f"export it again: {shlex.join(words + ['--text-pairs'] * made.text_pairs)}"
        return f"serve it with --precision fp32, or {again}" if "fp32" in made.variants else again


def bundles_to_use(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The bundles of the setting ``model``, or the embedded one if it names none."""
    return tuple(paths) or (EMBEDDED_BUNDLE,)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> tuple[Manifest, str]:
    """The manifest and its digest, which are of the same bytes."""
    try:
        content = (path / MANIFEST).read_bytes()
        raw = from_json(content)
    except (FileNotFoundError, NotADirectoryError):
        if not path.is_dir():
            raise UserError(f"there is no directory {path}; give that of a bundle") from None
        lacks = f"it has no {MANIFEST} (sentiment-export makes one)"
        raise UserError(f"{path} is not a bundle: {lacks}") from None
    except OSError as error:
        raise UserError(f"cannot read {path / MANIFEST}: {first_line(error)}") from error
    except ValueError as error:
        damage = f"{path / MANIFEST} is damaged: {first_line(error)}"
        raise UserError(f"{damage}; {_home(path, path / MANIFEST)[1]}") from error
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UserError(
            f"bundle {path} has format_version {version}; this service reads up to "
            f"{FORMAT_VERSION}: upgrade the service or export the model again"
        )
    try:
        return Manifest.model_validate(raw), hashlib.sha256(content).hexdigest()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{path / MANIFEST}: {where}: {message}") from None


def _home(bundle: Path, file: Path) -> tuple[Path, str]:
    """The directory in which all files of a bundle are, and what helps if this one is damaged."""
    home = bundle.resolve()
    if home.parent.name == "snapshots" and home.parent.parent.name.startswith(CACHED):
        # Links lead to files of the model, or to those that all models of the cache share. The
        # hub's client takes each for whole.
        return home.parents[2], f"delete {file.resolve()} and download it again"
    if home == EMBEDDED_BUNDLE:
        return home, "install the service again"
    if file.name == MANIFEST:  # the directory may be anything
        return home, "copy or export it again"
    return home, f"delete {home}, and copy or export it again"


def _check_digest(bundle: Path, name: str, expected: str) -> Path:
    try:
        path = (bundle / name).resolve()
        home, cure = _home(bundle, path)
        if not path.is_relative_to(home):
            raise UserError(f"bundle {bundle} names a file outside itself: {name}")
        digest = sha256(path)
    except (OSError, RuntimeError, ValueError) as error:  # also names that no file can have
        raise UserError(f"bundle {bundle} lacks {name!r}: {first_line(error)}") from error
    if digest != expected:
        raise UserError(
            f"bundle {bundle}: {name} is damaged or was changed (SHA-256 {digest[:12]}…, "
            f"the manifest says {expected[:12]}…): {cure}"
        )
    return path


def is_sentiment(labels: Iterable[str]) -> bool:
    """Whether the labels are negative and positive, with or without neutral: results have polarity.

    Export gives these names to every checkpoint that is known to be one of sentiment.
    """
    return {*labels} - {"neutral"} == {"negative", "positive"}
