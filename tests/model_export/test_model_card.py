"""The README.md of a bundle."""

from app.engine.model.bundle import (
    EMBEDDED_BUNDLE,
    Bundle,
    CheckpointSource,
    Manifest,
    Parity,
    Variant,
)
from model_export.model_card import model_card


def _manifest(**source: str) -> Manifest:
    parity = Parity(samples=44, max_abs_logit_diff=0.0123, label_agreement=0.977)
    accuracy = {"accuracy": 0.7, "macro_recall": 0.76543, "macro_f1": 0.75, "samples": 2000}
    return Manifest(
        format_version=1,
        name="moods",
        source=CheckpointSource(files={}, **source),
        architecture="RobertaForSequenceClassification",
        labels=["negative", "neutral", "positive"],
        max_tokens=512,
        preprocessing="tweet",
        variants={
            "fp32": Variant(file="onnx/model.onnx", sha256="0", bytes=498_600_000),
            "int8": Variant(
                file="onnx/model_int8.onnx",
                sha256="0",
                bytes=125_000_000,
                parity=parity,
                accuracy=accuracy,
            ),
        },
        files={},
        created_with={},
    )


def test_it_says_what_the_manifest_knows() -> None:
    """Name, origin, labels, length, normalisation, parity and scores stand in it."""
    card = model_card(_manifest(path="my-checkpoint"))
    lines = card.splitlines()
    assert "# moods" in lines
    assert "RobertaForSequenceClassification, exported to ONNX from `my-checkpoint`" in card
    assert "- Labels, in logit order: `negative`, `neutral`, `positive`" in lines
    assert "At most 512 tokens" in card
    assert "- Text normalisation before tokenising: tweet" in lines
    assert "| int8 | `onnx/model_int8.onnx` | 125.0 | 0.012 | 97.7% | 44 |" in lines
    assert "| int8 | 0.7000 | 0.7654 | 0.7500 | 2000 |" in lines


def test_the_embedded_models_card_has_the_figures_of_its_manifest() -> None:
    """It was written by hand: ECE and log loss, before and after, stand in its comparison."""
    record = Bundle.open(EMBEDDED_BUNDLE).manifest.variants["int8"].calibration
    assert record is not None
    lines = (EMBEDDED_BUNDLE / "README.md").read_text(encoding="utf-8").splitlines()
    rows = {cells[0]: cells for line in lines if len(cells := line.strip("| ").split(" | ")) == 9}
    before, after = rows["none"], rows["**temperature, Brier score**"]
    for cells, moment in ((before, "before"), (after, "after")):
        assert cells[2] == f"{getattr(record.ece, moment):.4f}"
        assert cells[5] == f"{getattr(record.log_loss, moment):.4f}"


def test_a_variant_without_figures_has_no_row() -> None:
    """What was not measured is not told."""
    assert "fp32" not in model_card(_manifest(path="my-checkpoint"))


def test_it_says_where_a_text_has_the_same_logits_in_every_batch() -> None:
    """On CPUs it was measured; of GPUs the card claims nothing."""
    card = model_card(_manifest(path="x")).replace("\n", " ")
    assert "On a CPU, the logits of a text are the same to the last bit in every batch" in card
    assert "On a GPU, this has not been measured" in card


def test_it_says_whether_the_model_takes_pairs() -> None:
    """A model takes single texts, unless its manifest has text_pairs."""
    manifest = _manifest(path="x")
    assert "- Input: single texts\n" in model_card(manifest)
    pairs = manifest.model_copy(update={"text_pairs": True})
    assert "- Input: single texts and pairs of texts\n" in model_card(pairs)


def test_it_says_what_was_done_to_each_graph() -> None:
    """One line for each variant that records it; older manifests have no such section."""
    manifest = _manifest(path="x")
    assert "What was done to the graph" not in model_card(manifest)
    passes = ["padding left out", "int8 embedding"]
    int8 = manifest.variants["int8"].model_copy(update={"passes": passes})
    card = model_card(manifest.model_copy(update={"variants": {"int8": int8}}))
    assert "## What was done to the graph" in card
    assert "- int8: padding left out, int8 embedding" in card.splitlines()


def test_a_hub_id_is_the_origin_where_there_is_one() -> None:
    """It says more than a directory's name."""
    card = model_card(_manifest(path="snapshot", repo_id="some/one"))
    assert "from `some/one`" in card


def test_without_labelled_texts_there_is_no_table_of_scores() -> None:
    """The heading goes with it."""
    manifest = _manifest(path="x")
    int8 = manifest.variants["int8"].model_copy(update={"accuracy": None})
    card = model_card(manifest.model_copy(update={"variants": {"int8": int8}}))
    assert "On labelled texts" not in card
    assert "macro recall" not in card


def test_its_head_is_what_the_hub_reads() -> None:
    """The metadata block comes first, as the hub wants it."""
    head = model_card(_manifest(path="x")).split("---\n")
    assert head[0] == ""
    assert head[1].splitlines() == ["library_name: onnx", "pipeline_tag: text-classification"]
