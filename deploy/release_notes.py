"""Prints the notes of a release: ``python deploy/release_notes.py v0.2.0``.

It fails unless the tag, ``pyproject.toml``, the Dockerfile and CHANGELOG.md name the same version.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def notes(tag: str, root: Path = ROOT) -> str:
    """The section of the changelog about the version."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if tag != f"v{project['version']}":
        raise ValueError(f"the tag is {tag}, but pyproject.toml has version {project['version']}")
    if f"\nARG VERSION={project['version']}\n" not in (root / "Dockerfile").read_text("utf-8"):
        raise ValueError(f"the Dockerfile has no ARG VERSION={project['version']}")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## \[{re.escape(tag[1:])}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## \[|\Z)"
    section = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    if section is None:
        raise ValueError(f"CHANGELOG.md has no section '## [{tag[1:]}] - YYYY-MM-DD'")
    return section[1].strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python deploy/release_notes.py vX.Y.Z")
    try:
        print(notes(sys.argv[1]))
    except ValueError as error:
        sys.exit(str(error))
