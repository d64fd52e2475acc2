"""A stand-in for sentiment-export in the processes that a test starts."""

from pathlib import Path
from textwrap import indent

import pytest


def replace_exporter(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started run this code, which finds its words in ``sys.argv[1:]``."""
    package = folder / "exporter/sentiment_export"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "cli.py").write_text(f"def main() -> None:\n{indent(code, '    ')}\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
