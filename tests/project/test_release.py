"""The release procedure: versions agree, and the workflows test what the package declares."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.release_notes import notes
from tests.support.serving import ROOT, run_program

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TAG = f"v{PROJECT['version']}"


def _workflow(name: str) -> dict[str, Any]:
    text = (ROOT / ".github/workflows" / name).read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_the_changelog_has_the_notes_of_the_version() -> None:
    """The version of pyproject.toml, Dockerfile and changelog is the same."""
    assert "### Added" in notes(TAG)


@pytest.mark.parametrize(
    ("tag", "file", "old", "new", "says"),
    [
        ("v9.9.9", "CHANGELOG.md", "", "", "the tag is v9.9.9, but pyproject.toml"),
        (TAG, "Dockerfile", "ARG VERSION=", "ARG VERSION=1", "the Dockerfile has no ARG VERSION="),
        (TAG, "CHANGELOG.md", f"## [{TAG[1:]}]", "## [0.0.0]", "CHANGELOG.md has no section"),
    ],
)
def test_a_version_that_differs_stops_the_release(
    tmp_path: Path, tag: str, file: str, old: str, new: str, says: str
) -> None:
    """The error names the file that has another version."""
    for name in ("pyproject.toml", "Dockerfile", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(old, new) if name == file else text, "utf-8")
    with pytest.raises(ValueError, match=re.escape(says)):
        notes(tag, tmp_path)


def test_without_a_tag_the_usage_is_shown() -> None:
    """The command for the notes says how it is called."""
    done = run_program(sys.executable, str(ROOT / "deploy/release_notes.py"))
    assert (done.returncode, done.stderr) == (1, "usage: python deploy/release_notes.py vX.Y.Z\n")


def test_ci_tests_each_python_that_the_package_names() -> None:
    """The classifiers and the matrix of the tests name the same versions."""
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert _workflow("ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == named
