"""The directory that a command writes, what is never replaced, and a bundle's README.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentiment_service.engine.model.bundle import (
    MANIFEST,
    SIDE_FILES,
    CalibrationLoss,
    Manifest,
    Precision,
    ReferenceKind,
)
from sentiment_service.errors import UserError

ONNX_FILES: dict[Precision, str] = {
    "fp32": "onnx/model.onnx",
    "int8": "onnx/model_int8.onnx",
    "fp16": "onnx/model_fp16.onnx",
}
BUNDLE_FILES = {
    MANIFEST,
    "README.md",
    *SIDE_FILES,
    *ONNX_FILES.values(),
    *(f"{name}_data" for name in ONNX_FILES.values()),  # weights beyond 2 GB
}


def check_bundle_output(output: Path) -> Path:
    """The absolute path of ``output``, if nothing, an empty directory or only a bundle is there."""
    output = output.resolve()
    if _is_occupied(output) and not is_bundle(output):
        raise UserError(f"{output} exists and is not a bundle; choose another --output")
    held = [path for folder in (output, output / "onnx") for path in folder.glob("*")]
    names = {str(path.relative_to(output)) for path in held} - {"onnx"}
    foreign = sorted(names - BUNDLE_FILES)
    if foreign:
        raise UserError(
            f"{output} holds {', '.join(foreign[:3])}, which the export would delete: it is "
            "not part of a bundle. Move it away, or choose another --output"
        )
    return output


def check_new_output(output: Path) -> Path:
    """The absolute path of ``output``, if nothing or an empty directory is there."""
    output = output.resolve()
    if _is_occupied(output):
        raise UserError(f"{output} exists and is not replaced; choose another --output")
    return output


def _is_occupied(output: Path) -> bool:
    return any(output.iterdir()) if output.is_dir() else output.exists()


def is_bundle(output: Path) -> bool:
    """Whether the manifest.json is a bundle's; web pages and extensions have one too."""
    try:
        return "format_version" in json.loads((output / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


LOSS_NAMES: dict[CalibrationLoss, str] = {"log": "log loss", "brier": "Brier score"}
CARD = """\
---
library_name: onnx
pipeline_tag: text-classification
---
# {name}

{architecture}, exported to ONNX from {source} for `sentiment serve --model`.

- Labels, in logit order: {labels}{several}
- At most {max_tokens} tokens; the rest of a longer text is cut off.
- Text normalisation before tokenising: {preprocessing}
- Input: {takes}
{notes}
## Parity with {reference}

| variant | file | MB | largest logit difference | labels that agree | texts |
| --- | --- | --- | --- | --- | --- |
{parity}

{invariance}
{passes}"""

INVARIANT = """\
On an x86 CPU, the logits of a text are the same to the last bit in every batch, except in fp16. On
a GPU, this has not been measured; `make gpu-check` in a clone of sentiment-service measures it."""
VARIES = "The logits of a text can change with the other texts of its batch, as in the source."
REFERENCES: dict[ReferenceKind | None, str] = {
    "fp32": "the fp32 graph",
    "onnx": "the source's graph",
}

PASSES = """
## What was done to the graph

{rows}
"""

ACCURACY = """
## On labelled texts

| variant | {first} | macro recall | macro F1 | texts |
| --- | --- | --- | --- | --- |
{rows}
"""

CALIBRATION = """
## Calibration

A text's logits are divided by the temperature before the scores are computed (Guo et al. 2017).
Labels and logits stay the same.

| variant | temperature | it minimises | ECE | log loss | texts |
| --- | --- | --- | --- | --- | --- |
{rows}

ECE is the expected calibration error with 15 bins of equal width. Each text is scored with a
temperature that was fitted on other texts ({folds}-fold cross-validation).
"""


DISTILLED = """
## Distilled

The layers {layers} of the {depth} layers of {teacher}, counted from 0, have learnt its logits from
{texts} texts without labels, in {epochs} epochs.

- On {held_out} other texts, the student gives the teacher's label to {agreement:.1%}: {by_label}.
- Their scores differ by {score_difference:.3f} on average.
"""


def model_card(manifest: Manifest, *, multi_label: bool = False) -> str:
    source, revision = manifest.source.repo_id or manifest.source.path, manifest.source.revision
    rows = [
        f"| {precision} | `{variant.file}` | {variant.total_bytes / 1e6:.1f} "
        f"| {variant.parity.max_abs_logit_diff:.2g} | {variant.parity.label_agreement:.1%} "
        f"| {variant.parity.samples} |"
        for precision, variant in manifest.variants.items()
        if variant.parity is not None
    ]
    done = [f"- {p}: {', '.join(v.passes)}" for p, v in manifest.variants.items() if v.passes]
    varies = any(variant.batch_invariant is False for variant in manifest.variants.values())
    card = CARD.format(
        name=manifest.name,
        architecture=manifest.architecture,
        source=f"`{source}`" + (f" at `{revision}`" if revision else ""),
        labels=", ".join(f"`{label}`" for label in manifest.labels),
        several="; a text may have several, or none" if multi_label else "",
        max_tokens=manifest.max_tokens,
        preprocessing=manifest.preprocessing,
        takes="single texts and pairs of texts" if manifest.text_pairs else "single texts",
        notes="".join(f"- {note[0].upper()}{note[1:]}.\n" for note in manifest.notes),
        reference=REFERENCES.get(manifest.reference, "the PyTorch checkpoint"),
        invariance=VARIES if varies else INVARIANT,
        parity="\n".join(rows),
        passes=PASSES.format(rows="\n".join(done)) if done else "",
    )
    scored = [
        f"| {precision} | {_first(scores)[1]:.4f} | {scores['macro_recall']:.4f} "
        f"| {scores['macro_f1']:.4f} | {scores['samples']} |"
        for precision, variant in manifest.variants.items()
        if (scores := variant.accuracy)
    ]
    if scored:
        (first, _), *_ = [_first(v.accuracy) for v in manifest.variants.values() if v.accuracy]
        card += ACCURACY.format(first=first, rows="\n".join(scored))
    if manifest.distilled:
        card += distilled_section(manifest.distilled)
    return card + calibration_section(manifest)


def _first(scores: Mapping[str, Any]) -> tuple[str, float]:
    """The figure by which variants are judged, and its name."""
    several = scores.get("micro_f1")  # of a multi-label model alone
    return ("accuracy", scores["accuracy"]) if several is None else ("micro F1", several)


def distilled_section(record: Mapping[str, Any]) -> str:
    """The card's section on what a distilled model learnt from, and how well."""
    teacher, of_label = record["teacher"], record["agreement_by_label"].items()
    name = teacher.get("repo_id") or teacher["name"]
    by_label = ", ".join(f"{label} {share:.1%}" for label, share in of_label)
    layers = ", ".join(map(str, record["layers"]))
    words = {**record, "layers": layers, "by_label": by_label, "depth": teacher["layers"]}
    section = DISTILLED.format(**words | {"teacher": f"`{name}`"})
    for who, scores in record.get("labelled", {}).items():
        first, figure = _first(scores)
        section += (
            f"- On {scores['samples']} labelled texts, {who}: {first} {figure:.4f}, "
            f"macro recall {scores['macro_recall']:.4f}.\n"
        )
    return section


def calibration_section(manifest: Manifest) -> str:
    """The card's section on calibration; empty if no variant is calibrated."""
    calibrated = {p: v.calibration for p, v in manifest.variants.items() if v.calibration}
    rows = [
        f"| {precision} | {one.temperature:.4f} | {LOSS_NAMES[one.loss]} "
        f"| {one.ece.before:.4f} → {one.ece.after:.4f} "
        f"| {one.log_loss.before:.4f} → {one.log_loss.after:.4f} | {one.texts} |"
        for precision, one in calibrated.items()
    ]
    if not rows:
        return ""
    folds = " or ".join(sorted({str(one.folds) for one in calibrated.values()}))
    return CALIBRATION.format(rows="\n".join(rows), folds=folds)
