"""The README.md of a bundle."""

from typing import Any

import pytest
from sentiment_export.output import distilled_section, model_card
from sentiment_service.engine.model.bundle import (
    EMBEDDED_BUNDLE,
    Bundle,
    CheckpointSource,
    Manifest,
    Parity,
    Variant,
)

ACCURACY = {"accuracy": 0.7, "macro_recall": 0.76543, "macro_f1": 0.75, "samples": 2000}
DISTILLED = {
    "teacher": {"name": "big", "layers": 12},
    "layers": [1, 3],
    "texts": 900,
    "epochs": 3,
    "held_out": 100,
    "agreement": 0.9,
    "agreement_by_label": {"positive": 0.9},
    "score_difference": 0.01,
}
INT8 = Variant(
    file="onnx/model_int8.onnx",
    sha256="0",
    bytes=125_000_000,
    parity=Parity(samples=44, max_abs_logit_diff=0.0123, label_agreement=0.977),
)
# Lines and words of the card of the least that a manifest can say.
ALWAYS = [
    "library_name: onnx",
    "pipeline_tag: text-classification",
    "# moods",
    "- Labels, in logit order: `negative`, `neutral`, `positive`",
    "- At most 512 tokens; the rest of a longer text is cut off.",
    "- Text normalisation before tokenising: tweet",
    "- Input: single texts",
    "| int8 | `onnx/model_int8.onnx` | 125.0 | 0.012 | 97.7% | 44 |",
]
IN_ANY_CARD = (
    "RobertaForSequenceClassification, exported to ONNX from `my-checkpoint` for `sentiment serve",
    "On an x86 CPU, the logits of a text are the same to the last bit in every batch, except in",
    "On\na GPU, this has not been measured; `make gpu-check`",
)


def _manifest(int8: Variant = INT8, repo_id: str | None = None) -> Manifest:
    """No figure of its fp32 variant was measured."""
    return Manifest(
        format_version=2,
        name="moods",
        source=CheckpointSource(files={}, path="my-checkpoint", repo_id=repo_id),
        architecture="RobertaForSequenceClassification",
        labels=["negative", "neutral", "positive"],
        max_tokens=512,
        preprocessing="tweet",
        variants={"fp32": Variant(file="onnx/model.onnx", sha256="0", bytes=1), "int8": int8},
        files={},
        created_with={},
    )


def _card(int8: Variant = INT8, repo_id: str | None = None, **changes: Any) -> list[str]:
    return model_card(_manifest(int8, repo_id).model_copy(update=changes)).splitlines()


def test_it_says_what_the_manifest_knows_and_no_more() -> None:
    """The metadata that the hub reads comes first. What was not measured has no row or section."""
    lines = _card()
    assert lines[0] == lines[3] == "---"
    assert set(ALWAYS) <= set(lines)
    assert all(words in "\n".join(lines) for words in IN_ANY_CARD)
    assert [line for line in lines if line.startswith("## ")] == [
        "## Parity with the PyTorch checkpoint"
    ]
    assert "fp32" not in "".join(lines)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"repo_id": "some/one"}, "from `some/one` for"),
        ({"text_pairs": True}, "- Input: single texts and pairs of texts"),
        (
            {"int8": INT8.model_copy(update={"accuracy": ACCURACY})},
            "| --- | --- | --- | --- | --- |\n| int8 | 0.7000 | 0.7654 | 0.7500 | 2000 |",
        ),
        (
            {"int8": INT8.model_copy(update={"passes": ["padding left out", "int8 embedding"]})},
            "## What was done to the graph\n\n- int8: padding left out, int8 embedding",
        ),
    ],
)
def test_what_a_manifest_may_say_has_its_place(changes: dict[str, Any], says: str) -> None:
    """A hub id comes before a directory's name; pairs, scores and passes are told if recorded."""
    assert says in "\n".join(_card(**changes))
    assert says not in "\n".join(_card())


def test_the_card_of_a_multi_label_model_says_so() -> None:
    """Its accuracy is rarely above 0: that of all labels of a text. Variants are judged by F1."""
    accuracy = ACCURACY | {"micro_f1": 0.61}
    labelled = {"teacher": accuracy, "student": accuracy}
    manifest = _manifest(INT8.model_copy(update={"accuracy": accuracy}))
    lines = model_card(manifest, multi_label=True).splitlines()
    assert ALWAYS[3] + "; a text may have several, or none" in lines
    assert "| variant | micro F1 | macro recall | macro F1 | texts |" in lines
    assert "| int8 | 0.6100 | 0.7654 | 0.7500 | 2000 |" in lines
    section = distilled_section(DISTILLED | {"labelled": labelled})
    assert "- On 2000 labelled texts, student: micro F1 0.6100, macro recall 0.7654." in section


def test_the_embedded_models_card_has_the_figures_of_its_manifest() -> None:
    """It was written by hand: ECE and log loss, before and after, stand in its comparison."""
    record = Bundle.open(EMBEDDED_BUNDLE).manifest.variants["int8"].calibration
    assert record is not None
    lines = (EMBEDDED_BUNDLE / "README.md").read_text(encoding="utf-8").splitlines()
    rows = {cells[0]: cells for line in lines if len(cells := line.strip("| ").split(" | ")) == 3}
    before, after = rows["none"], rows["**temperature, Brier score**"]
    for cells, moment in ((before, "before"), (after, "after")):
        assert cells[1] == f"{getattr(record.ece, moment):.4f}"
        assert cells[2] == f"{getattr(record.log_loss, moment):.4f}"
