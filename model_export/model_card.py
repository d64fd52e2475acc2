"""Writes the README.md of a bundle."""

from app.engine.bundle import Manifest

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

## Parity with the PyTorch checkpoint

| variant | file | MB | largest logit difference | labels that agree | texts |
| --- | --- | --- | --- | --- | --- |
{parity}
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
        parity="\n".join(rows),
        passes=PASSES.format(rows="\n".join(done)) if done else "",
    )
    scored = [
        f"| {precision} | {scores['accuracy']:.4f} | {scores['macro_recall']:.4f} "
        f"| {scores['macro_f1']:.4f} | {scores['samples']} |"
        for precision, variant in manifest.variants.items()
        if (scores := variant.accuracy)
    ]
    return card + ACCURACY.format(rows="\n".join(scored)) if scored else card
