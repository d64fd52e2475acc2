"""What import-linter cannot see: package files, what a start loads, the client alone."""

import ast
import subprocess
import sys
from pathlib import Path

from tests.support.serving import ROOT

EXPORT_ONLY = {"torch", "transformers", "optimum", "onnx", "sklearn"}


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
            # `from app import main` imports app.main.
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_package_files_are_empty() -> None:
    """Every __init__.py is empty: importing a package runs nothing and renames nothing."""
    inits = [path for path in _modules("app", "model_export") if path.name == "__init__.py"]
    assert {path.parent.name for path in inits} >= {"app", "api", "model_export"}
    assert not [path for path in inits if path.stat().st_size]


def test_starting_the_service_loads_no_export_package() -> None:
    """Importing all that serving imports leaves torch, transformers and the rest unloaded."""
    code = "import app.main, app.cli.command, sys; "
    code += "print(*{name.partition('.')[0] for name in sys.modules})"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    assert "fastapi" in loaded
    assert not loaded & EXPORT_ONLY


def test_the_client_is_one_file_that_can_be_copied() -> None:
    """It imports the standard library and httpx, and nothing of ours."""
    imported = {name.partition(".")[0] for name in _imported(ROOT / "sentiment_client.py")}
    assert imported - sys.stdlib_module_names == {"httpx"}
