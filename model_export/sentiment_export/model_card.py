"""Writes the README.md of a bundle."""

from sentiment_service.engine.model.bundle import CalibrationLoss, Manifest

LOSS_NAMES: dict[CalibrationLoss, str] = {"log": "log loss", "brier": "Brier score"}
CARD = """\
---
library_name: onnx
pipeline_tag: text-classification
---
# {name}

{architecture}, exported to ONNX from {source} for `sentiment serve --model`.

- Labels, in logit order: {labels}
- At most {max_tokens} tokens; the rest of a longer text is cut off.
- Text normalisation before tokenising: {preprocessing}
- Input: {takes}
{notes}
## Parity with {reference}

| variant | file | MB | largest logit difference | labels that agree | texts |
| --- | --- | --- | --- | --- | --- |
{parity}

On an x86 CPU, the logits of a text are the same to the last bit in every batch, except in fp16. On
a GPU, this has not been measured; `make gpu-check` in a clone of sentiment-service measures it.
{passes}"""

PASSES = """
## What was done to the graph

{rows}
"""

ACCURACY = """
## On labelled texts

| variant | accuracy | macro recall | macro F1 | texts |
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


def model_card(manifest: Manifest) -> str:
    """The model card (Markdown), filled in from the manifest."""
    source, revision = manifest.source.repo_id or manifest.source.path, manifest.source.revision
    rows = [
        f"| {precision} | `{variant.file}` | {variant.total_bytes / 1e6:.1f} "
        f"| {variant.parity.max_abs_logit_diff:.2g} | {variant.parity.label_agreement:.1%} "
        f"| {variant.parity.samples} |"
        for precision, variant in manifest.variants.items()
        if variant.parity is not None
    ]
    done = [f"- {p}: {', '.join(v.passes)}" for p, v in manifest.variants.items() if v.passes]
    card = CARD.format(
        name=manifest.name,
        architecture=manifest.architecture,
        source=f"`{source}`" + (f" at `{revision}`" if revision else ""),
        labels=", ".join(f"`{label}`" for label in manifest.labels),
        max_tokens=manifest.max_tokens,
        preprocessing=manifest.preprocessing,
        takes="single texts and pairs of texts" if manifest.text_pairs else "single texts",
        notes="".join(f"- {note[0].upper()}{note[1:]}.\n" for note in manifest.notes),
        reference="the fp32 graph" if manifest.reference == "fp32" else "the PyTorch checkpoint",
        parity="\n".join(rows),
        passes=PASSES.format(rows="\n".join(done)) if done else "",
    )
    scored = [
        f"| {precision} | {scores['accuracy']:.4f} | {scores['macro_recall']:.4f} "
        f"| {scores['macro_f1']:.4f} | {scores['samples']} |"
        for precision, variant in manifest.variants.items()
        if (scores := variant.accuracy)
    ]
    if scored:
        card += ACCURACY.format(rows="\n".join(scored))
    return card + calibration_section(manifest)


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
