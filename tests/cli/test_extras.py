"""Without an optional package, each command says in one line which extra to install."""

import subprocess
import sys
from pathlib import Path

import pytest

from app.extras import EXTRAS
from tests.support.serving import ROOT, environment

RUN = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] == '{hidden}':
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Hidden())
from {package}.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("package", "hidden", "extra", "words"),
    [
        ("app", "onnxruntime", "cpu", ["serve"]),
        ("app", "onnxruntime", "cpu", ["classify", "hello"]),
        ("app", "httpx", "files", ["classify", "--url", "http://127.0.0.1:9", "hello"]),
        ("app", "pyarrow", "files", ["classify", "--input", "x.parquet"]),
        ("model_export", "torch", "export", [".", "--output", "bundle"]),
        ("model_export", "huggingface_hub", "hub", ["describe", "source"]),
        ("model_export", "onnxruntime", "cpu", ["evaluate", "bundle", "file"]),
        (
            "model_export",
            "transformers",
            "export",
            ["finetune", "base", "--train", "a", "--validation", "b", "--output", "c"],
        ),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, package: str, hidden: str, extra: str, words: list[str]
) -> None:
    """One line on standard error with the commands for this interpreter, and exit code 1."""
    (tmp_path / "x.parquet").touch()
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(hidden=hidden, package=package), *words],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]  # `serve` first logs port and model
    assert f"the package {hidden}, which the extra '{extra}'" in line
    assert f"{sys.executable} -m " in line
    assert f" 'sentiment-service[{extra}]'" in line
    assert ("--torch-backend cpu" in line) == (extra == "export")


def test_the_client_names_the_package_that_it_needs() -> None:
    """`import sentiment_client` without httpx fails with an ImportError that says so."""
    code = "import sys; sys.modules['httpx'] = None; import sentiment_client"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    says = "ModuleNotFoundError: sentiment_client needs the package httpx (0.28 or newer)"
    assert done.stderr.splitlines()[-1] == says


def test_each_extra_exists() -> None:
    """The table names extras of pyproject.toml only."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{extra} = [" in text for extra in set(EXTRAS.values()))
