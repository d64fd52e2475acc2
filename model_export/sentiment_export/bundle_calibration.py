"""Calibrates the variants of a bundle on labelled texts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentiment_service.atomic_files import write_text_atomically
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import (
    MANIFEST,
    Bundle,
    CalibrationLoss,
    Manifest,
    sha256,
)
from sentiment_service.errors import UserError

from sentiment_export.output import calibration_section, model_card
from sentiment_export.quality.evaluation import as_decisions, calibrate, logits_of_examples
from sentiment_export.quality.labelled import Columns, Example, read_examples

# With fewer texts, the temperature would depend more on the choice of the texts than on the model.
LEAST_TEXTS = 100


@dataclass(frozen=True, slots=True)
class CalibrationTexts:
    """The labelled texts of a file, and the file's SHA-256."""

    examples: Sequence[Example]
    sha256: str

    @classmethod
    def read(
        cls, path: Path, labels: list[str], columns: Columns | None = None, *, multi_label: bool
    ) -> "CalibrationTexts":
        """Read a labelled file.

        Raises:
            UserError: ``read_examples`` refuses the file, or it has too few texts.
        """
        examples = read_examples(path, labels, columns, multi_label=multi_label)
        if len(examples) < LEAST_TEXTS:
            raise UserError(
                f"{path} holds {len(examples)} labelled texts; calibration needs at least "
                f"{LEAST_TEXTS}"
            )
        return cls(examples, sha256(path))


def calibrated(
    bundle: Bundle,
    texts: CalibrationTexts,
    loss: CalibrationLoss = "log",
    say: Callable[[str], None] = print,
) -> Manifest:
    """The bundle's manifest with a temperature for every variant, each fitted on its own logits.

    Raises:
        UserError: a text cannot be classified, or no temperature fits.
    """
    variants = {}
    for precision, variant in bundle.manifest.variants.items():
        model = load_model(bundle, device="cpu", precision=precision, threads=0)
        computed = logits_of_examples(model, texts.examples)
        logits, gold = as_decisions(model, computed, texts.examples)
        each = len(gold) // len(texts.examples)
        calibration = calibrate(logits, gold, loss, texts.sha256, each)
        say(f"{precision}: {calibration.line()}")
        variants[precision] = variant.model_copy(update={"calibration": calibration})
    return bundle.manifest.model_copy(update={"variants": variants})


def calibrate_bundle(
    path: Path,
    file: Path,
    loss: CalibrationLoss,
    columns: Columns | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Calibrate a bundle on a labelled file, and record it in its manifest and its model card.

    A model card that was edited by hand stays as it is; its new section is printed instead.

    Raises:
        UserError: ``path`` is not a bundle, ``file`` is refused, or see ``calibrated``. Nothing was
            changed.
    """
    bundle = Bundle.open(path)
    texts = CalibrationTexts.read(
        file, bundle.manifest.labels, columns, multi_label=bundle.multi_label
    )
    manifest = calibrated(bundle, texts, loss, say)
    # The manifest may hold entries of a newer version; they stay.
    document = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    for precision, variant in manifest.variants.items():
        document["variants"][precision] |= variant.model_dump(include={"calibration"})
    card = path / "README.md"
    edited = card.exists() and card.read_text(encoding="utf-8") != model_card(bundle.manifest)
    write_text_atomically(
        path / MANIFEST, json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    )
    if edited:
        say(f"{card} was edited, so it stays; add this to it:\n{calibration_section(manifest)}")
    else:
        write_text_atomically(card, model_card(manifest))
