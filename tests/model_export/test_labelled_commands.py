"""``sentiment-export evaluate`` and ``calibrate``: their options, output and refusals."""

import json
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from sentiment_export.cli import main
from sentiment_export.quality.labelled import Example, Labels
from sentiment_export.quality.scores import TEXTS_SHOWN, changes, comparison, score
from sentiment_service.engine.model.bundle import Bundle

from tests.support.exporter import replace_exporter
from tests.support.tiny_bundle import LABELS, make_bundle

# The model says positive, negative, neutral, positive.
ROWS = """id,review,mood,language
1,love it,positive,en
2,worst,neg,en
3,so so,positive,de
4,love & worst love,negative,de
"""
NAMED = ["--column", "review", "--label-column", "mood"]
MULTI_LABEL: dict[str, Any] = {"problem_type": "multi_label_classification"}
# In the place of sentiment-export: copies a bundle that is there.
COPY = "import shutil, sys; shutil.copytree({!r}, sys.argv[sys.argv.index('--output') + 1])"


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """A CSV file of four labelled texts."""
    path = tmp_path / "reviews.csv"
    path.write_text(ROWS, encoding="utf-8")
    return path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A bundle that takes positive for negative, and has its labels in another order."""
    return make_bundle(tmp_path / "other", labels=LABELS[::-1])


def _json(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> dict[str, list[dict[str, object]]]:
    assert main([*words, "--json"]) == 0
    document: dict[str, list[dict[str, object]]] = json.loads(capsys.readouterr().out)
    return document


def test_a_table_is_scored_by_its_columns(
    bundle: Path, reviews: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As text and as JSON; the groups of a column are scored one by one."""
    words = ["evaluate", str(bundle), str(reviews), *NAMED, "--group-column", "language"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("fp32: macro recall 0.5000  macro F1 0.5833  accuracy 0.5000  (4 ")
    assert "\npositive     0.5000  0.5000  0.5000      2\n" in printed
    assert "\nde    macro recall 0.0000" in printed
    (scored,) = _json(words, capsys)["models"]
    assert (scored["bundle"], scored["variant"]) == (str(bundle), "fp32")
    assert scored["confusion"] == [[1, 0, 1], [0, 0, 0], [0, 1, 1]]
    assert scored["precision"] == {"negative": 1.0, "positive": 0.5}


def test_two_bundles_are_compared(
    bundle: Path, other: Path, reviews: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures side by side and each change with its rows, whatever the order of the labels."""
    words = ["evaluate", str(bundle), str(reviews), *NAMED, "--against", str(other)]
    assert main(words) == 0
    *_, printed = capsys.readouterr().out.partition("              against     this\n")
    assert printed.splitlines() == [
        "macro recall   0.2500   0.5000  +0.2500",
        "macro F1       0.2500   0.5833  +0.3333",
        "accuracy       0.2500   0.5000  +0.2500",
        "F1 negative    0.5000   0.6667  +0.1667",
        "F1 positive    0.0000   0.5000  +0.5000",
        "texts whose labels changed: 3 of 4",
        "negative → positive: 2 (1 now right, 1 now wrong); rows 1, 4",
        "positive → negative: 1 (1 now right, 0 now wrong); rows 2",
        "row 1, negative → positive (right: positive): love it",
        "row 2, positive → negative (right: negative): worst",
        "row 4, negative → positive (right: negative): love & worst love",
    ]
    document = _json(words, capsys)
    assert [model["bundle"] for model in document["models"]] == [str(bundle), str(other)]
    first, _ = document["changes"]
    assert (first["before"], first["after"], first["rows"]) == ("negative", "positive", [1, 4])
    assert (first["now_right"], first["now_wrong"]) == (1, 1)
    assert "love it" not in json.dumps(document)


def test_a_multi_label_bundle_is_scored_label_by_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Micro and macro F1; a change is from all labels of a text to all that it gets now."""
    path = make_bundle(tmp_path / "many", **MULTI_LABEL)
    same = make_bundle(tmp_path / "same", labels=LABELS[::-1], **MULTI_LABEL)
    file = tmp_path / "many.jsonl"
    rows = [{"text": "love", "label": ["positive", "neutral"]}, {"text": "worst", "label": []}]
    rows.append({"text": "it", "label": "neutral"})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = _json(["evaluate", str(path), str(file), "--against", str(same)], capsys)
    # The first gets neutral and positive, the second negative and neutral, the third all three.
    assert document["models"][0]["micro_f1"] == 2 * 3 / (3 + 7)
    assert document["models"][0]["accuracy"] == pytest.approx(1 / 3)
    first = {"before": "negative, neutral", "after": "neutral, positive", "rows": [1]}
    second = {"before": "neutral, positive", "after": "negative, neutral", "rows": [2]}
    assert document["changes"] == [
        {**first, "now_right": 1, "now_wrong": 0},
        {**second, "now_right": 0, "now_wrong": 0},
    ]


def test_only_some_of_the_changed_texts_are_shown() -> None:
    """Twenty, in the order of the rows; the counts are of all."""
    labels = [LABELS[row % 3] for row in range(60)]
    examples = [Example("", (label,), f"text\n{row}") for row, label in enumerate(labels, 1)]
    gold: list[Labels] = [(label,) for label in labels]
    neutral: list[Labels] = [("neutral",)] * 60
    found = changes(examples, neutral, gold)
    assert [(len(one.rows), one.now_right, one.now_wrong) for one in found] == [
        (20, 20, 0),
        (20, 20, 0),
    ]
    old, new = (score(gold, named, LABELS) for named in (neutral, gold))
    lines = comparison(old, new, found, examples).splitlines()
    shown = [line for line in lines if line.startswith("row ")]
    assert len(shown) == TEXTS_SHOWN
    assert shown[1] == "row 3, neutral → positive (right: positive): text 3"
    assert any(line.endswith("rows 1, 4, 7, 10, 13, 16, 19, 22, 25, 28 …") for line in lines)


@pytest.mark.parametrize("config", [{}, MULTI_LABEL])
def test_the_picture_shows_what_the_table_does(
    tmp_path: Path, reviews: Path, config: dict[str, Any]
) -> None:
    """SVG that any viewer reads, with the labels as they are, and each figure or count but 0."""
    labels = ["bad & <sad>", "neutral", "positive"]
    path, picture = make_bundle(tmp_path / "b", labels=labels, **config), tmp_path / "out.svg"
    reviews.write_text(ROWS.replace("neg", "LABEL_0").replace("LABEL_0ative", "LABEL_0"))
    assert main(["evaluate", str(path), str(reviews), *NAMED, "--picture", str(picture)]) == 0
    drawn = fromstring(picture.read_text(encoding="utf-8"))  # noqa: S314 - our own file
    texts = [element.text for element in drawn.iter() if element.text]
    texts = [text.strip() for text in texts if text.strip()]
    assert texts.count("bad & <sad>") == (1 if config else 2)
    expected = ["0.67", "1.00", "0.80"] if config else ["1", "1", "1"]
    cells = [text for text in texts if text.replace(".", "").isdecimal()]
    assert cells[:3] == expected


def test_the_picture_of_many_labels_has_as_many_counts_as_there_are_texts(
    tmp_path: Path, reviews: Path
) -> None:
    """All 250,000 pairs of 500 labels, of which most are never seen, would take minutes."""
    labels = [*LABELS, *(f"other {n}" for n in range(497))]
    path, picture = make_bundle(tmp_path / "b", labels=labels, outputs=500), tmp_path / "out.svg"
    assert main(["evaluate", str(path), str(reviews), *NAMED, "--picture", str(picture)]) == 0
    assert picture.stat().st_size < 2_000_000


@pytest.mark.parametrize("json_or_text", [["--json"], []])
def test_a_picture_that_cannot_be_written_costs_no_figures(
    bundle: Path,
    tmp_path: Path,
    reviews: Path,
    capsys: pytest.CaptureFixture[str],
    json_or_text: list[str],
) -> None:
    """A directory that is missing is found before the work, anything else after they are shown."""
    (tmp_path / "here.svg").mkdir()
    words = [str(reviews), *NAMED, *json_or_text, "--picture"]
    assert main(["evaluate", "acme/none", *words, str(tmp_path / "none/out.svg")]) == 1
    assert f"{tmp_path / 'none'}: No such file or directory" in capsys.readouterr().err
    assert main(["evaluate", str(bundle), *words, str(tmp_path / "here.svg")]) == 1
    printed = capsys.readouterr()
    assert "accuracy" in printed.out
    assert "Is a directory" in printed.err


def test_a_checkpoint_is_exported_once(
    bundle: Path,
    tmp_path: Path,
    reviews: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And kept in the cache directory, as for the service; so is a hub id."""
    replace_exporter(tmp_path, COPY.format(str(bundle)), monkeypatch)
    words = ["evaluate", "acme/tiny", str(reviews), *NAMED, "--cache-dir", str(tmp_path / "cache")]
    for said in ("exporting acme/tiny; this is done once\n", ""):
        assert main(words) == 0
        printed = capsys.readouterr()
        assert printed.err == said
        assert printed.out.startswith("fp32: macro recall 0.5000")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("{bundle} {file} --column review", "no column 'label'; --label-column accepts one of"),
        ("{many} {file} {named} --against {bundle}", "positive (multi-label), but"),
        ("{stars} {file} {named} --against {bundle}", "only models with the same labels can be"),
        ("{bundle} {file} {named} --precision int8", "has no int8 variant; it holds: fp32"),
        (
            "org {file}",
            "there is no directory org; give a bundle, a checkpoint directory, or a hub",
        ),
    ],
)
def test_a_failure_is_one_line(
    bundle: Path,
    tmp_path: Path,
    reviews: Path,
    capsys: pytest.CaptureFixture[str],
    words: str,
    says: str,
) -> None:
    """Exit code 1, and what would be accepted."""
    paths = {
        "bundle": bundle,
        "file": reviews,
        "named": " ".join(NAMED),
        "many": make_bundle(tmp_path / "many", **MULTI_LABEL),
        "stars": make_bundle(tmp_path / "stars", labels=["1", "2", "3"]),
    }
    assert main(["evaluate", *words.format(**paths).split()]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_calibrate_reads_the_columns_of_a_table(tmp_path: Path) -> None:
    """The same flags as those of evaluate."""
    path, file = make_bundle(tmp_path / "tiny"), tmp_path / "labelled.csv"
    rows = ["love,positive", "worst,negative", "it it it,neutral", "love,negative"]
    file.write_text("\n".join(["review,mood", *rows * 30, ""]), encoding="utf-8")
    assert main(["calibrate", str(path), str(file), *NAMED]) == 0
    calibration = Bundle.open(path).manifest.variants["fp32"].calibration
    assert calibration is not None
    assert calibration.texts == 120
