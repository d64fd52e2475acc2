"""The settings of a fine-tuning run, and the directory with the saves of an unfinished one."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sentiment_service.engine.model.bundle import sha256
from sentiment_service.engine.options import Preprocessing
from sentiment_service.errors import UserError

# Special tokens included. A longer text is cut, or sooner if the base has fewer positions.
MAX_TOKENS = 96
WARMUP_SHARE = 0.06
LABEL_SMOOTHING = 0.05
IDENTITY = "training.json"  # among the saves: what they depend on


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that the trained weights depend on."""

    base: Path
    train: Sequence[Path]
    validation: Path
    epochs: int
    seeds: Sequence[int]
    learning_rate: float
    batch_size: int
    preprocessing: Literal["auto", Preprocessing] = "auto"
    tokens_from: int | None = None  # only the word embeddings from this token id on are trained

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready copy. It is published with the model, so paths become file names."""
        return asdict(self) | {
            "base": self.base.name,
            "train": [path.name for path in self.train],
            "validation": self.validation.name,
            "seeds": list(self.seeds),
            "warmup_share": WARMUP_SHARE,
            "label_smoothing": LABEL_SMOOTHING,
            "max_tokens": MAX_TOKENS,
            "class_weights": "balanced",
        }


def start_or_resume(directory: Path, recipe: Recipe) -> None:
    """Make the directory, or check that what it holds is of the same training.

    Raises:
        UserError: the base, a labelled file or a setting is another than when it was saved.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for half in directory.glob("seed-*.tmp"):  # the training was killed while it saved
        half.unlink()
    identity, path = _identity(recipe), directory / IDENTITY
    if not any(directory.glob("seed-*.pt")):
        path.write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")
        return
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, value in identity.items():
        if saved.get(name) != value:
            raise UserError(
                f"{directory} holds an unfinished training, but {name} was "
                f"{saved.get(name, 'not recorded')} then and is {value} now; repeat the first "
                "command to resume it, or remove the directory to start anew"
            )


def remove_saves(directory: Path) -> None:
    """Remove what a training has saved. A directory with other files in it stays."""
    for path in (*directory.glob("seed-*.pt"), directory / IDENTITY):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        directory.rmdir()


def _identity(recipe: Recipe) -> dict[str, Any]:
    """What the weights of a seed depend on. Seeds can be added to an unfinished training."""
    settings = recipe.as_dict()
    for name in ("base", "train", "validation", "seeds"):
        del settings[name]
    return {
        "the content of the base": _digest(sorted(filter(Path.is_file, recipe.base.iterdir()))),
        "the content of --train": _digest(recipe.train),
        "the content of --validation": _digest([recipe.validation]),
        "saves": "after each epoch",  # not in its midst, as those of earlier versions
        **settings,
    }


def _digest(paths: Iterable[Path]) -> str:
    digests = " ".join(map(sha256, paths))
    return "sha256 " + hashlib.sha256(digests.encode()).hexdigest()[:16]
