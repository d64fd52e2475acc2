"""The comparison of calibration methods."""

import sys
from pathlib import Path

import pytest

from benchmarks import calibration
from tests.support.tiny_bundle import LABELS


def test_every_method_is_measured(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A temperature lowers the log loss, and changes no label; "none" changes none either."""
    words = dict(zip(LABELS, ("worst", "it it", "love"), strict=True))
    shown = [LABELS[(row + (row % 4 == 0)) % 3] for row in range(60)]
    rows = [f"en\t{LABELS[row % 3]}\t{words[label]}\n" for row, label in enumerate(shown)]
    (tmp_path / "labelled.tsv").write_text("".join(rows))
    monkeypatch.setattr(calibration, "DIVISIONS", 1)
    monkeypatch.setattr(sys, "argv", ["calibration", str(bundle), str(tmp_path / "labelled.tsv")])
    calibration.main()
    _, _, *lines = capsys.readouterr().out.splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    losses = {name: float(row[3]) for name, _, *row in table}
    changed = {name: int(row[5]) for name, _, *row in table}
    assert len(table) == 8
    assert changed["none"] == changed["temperature, log loss"] == 0
    assert losses["temperature, log loss"] < losses["none"]
