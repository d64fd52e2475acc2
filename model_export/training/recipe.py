"""The settings of a fine-tuning run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Special tokens included. A longer text is cut, or sooner if the base has fewer positions.
MAX_TOKENS = 96
WARMUP_SHARE = 0.06
LABEL_SMOOTHING = 0.05


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that the trained weights depend on."""

    base: Path
    train: tuple[Path, ...]
    validation: Path
    epochs: int = 2
    seeds: tuple[int, ...] = (0, 1)
    learning_rate: float = 1e-4
    batch_size: int = 32

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready copy. It is published with the model, so paths become file names."""
        return {
            "base": self.base.name,
            "train": [path.name for path in self.train],
            "validation": self.validation.name,
            "epochs": self.epochs,
            "seeds": list(self.seeds),
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "warmup_share": WARMUP_SHARE,
            "label_smoothing": LABEL_SMOOTHING,
            "max_tokens": MAX_TOKENS,
            "class_weights": "balanced",
        }
