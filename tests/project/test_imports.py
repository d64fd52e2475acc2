"""What import-linter cannot see: package files, what a start loads, the client alone."""

import ast
import sys
from pathlib import Path

import pytest

from tests.support.serving import ROOT, run_program

EXPORT_ONLY = {"torch", "transformers", "optimum", "onnx", "sklearn"}
SERVING = {"fastapi", "uvicorn", "onnxruntime", "numpy"}


def _modules(*packages: str) -> list[Path]:
    paths = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    assert paths, f"no modules under {packages}"
    return paths


def _imported(path: Path) -> set[str]:
    """Every dotted name that a module imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from sentiment_service import main` imports sentiment_service.main.
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_package_files_are_empty() -> None:
    """But those with their package's own names: what programs import, and gRPC's registration."""
    inits = [path for path in _modules("app", "model_export") if path.name == "__init__.py"]
    assert {path.parent.name for path in inits} >= {"http", "sentiment_export"}
    assert {path.parent.name for path in inits if path.stat().st_size} == {
        "sentiment_service",
        "grpc",
    }


@pytest.mark.parametrize(
    ("code", "loaded", "absent"),
    [
        ("import sentiment_service.main, sentiment_service.cli.command", "fastapi", EXPORT_ONLY),
        ("from sentiment_service.cli.command import _parser; _parser()", "argparse", SERVING),
        ("import sentiment_service.workers.supervisor", "socket", SERVING),
        ("import sentiment_export.export", "onnx", {"torch", "transformers", "optimum"}),
    ],
    ids=["serving", "help", "supervisor", "export"],
)
def test_what_a_start_does_not_need_is_not_loaded(code: str, loaded: str, absent: set[str]) -> None:
    """Serving loads no export package. The help and the supervisor load nothing that serves.

    So the help is quick, and a supervisor takes little memory and starts at once. An export of
    BERT's family needs no PyTorch.
    """
    names = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = run_program(sys.executable, "-c", f"{code}; {names}")
    assert done.returncode == 0, done.stderr
    assert loaded in done.stdout.split()
    assert not set(done.stdout.split()) & absent


def test_the_client_imports_nothing_of_ours() -> None:
    """The client is one file that can be copied. Importing it needs only Python."""
    imported = {name.partition(".")[0] for name in _imported(ROOT / "app/sentiment_client.py")}
    assert imported - sys.stdlib_module_names == {"httpx"}  # when a client is made
    others = {"httpx", "matplotlib", "pandas", "pyarrow"}
    code = f"import sys; sys.modules |= dict.fromkeys({others}); import sentiment_client"
    assert run_program(sys.executable, "-c", code).returncode == 0
