"""The import rules: what may know of what."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


def _violations(path: Path, forbidden: set[str]) -> list[str]:
    return sorted(
        f"{path.relative_to(ROOT)} imports {name}"
        for name in _imported(path)
        if any(name == module or name.startswith(f"{module}.") for module in forbidden)
    )


def test_the_service_never_imports_the_exporter_or_its_packages() -> None:
    """No module of app/ imports model_export, torch, transformers, optimum, onnx or sklearn."""
    forbidden = {"model_export"} | EXPORT_ONLY
    assert not [line for path in _modules("app") for line in _violations(path, forbidden)]


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("settings", {"app"}),
        ("errors", {"app"}),
        *(
            (
                module,
                {"app.engine.model", "app.observability.metrics", "app.api", "app.settings"}
                | {"fastapi", "onnxruntime", "tokenizers"},
            )
            for module in (
                *("engine/batching/batcher", "engine/batching/admission"),
                *("engine/batching/budget", "engine/batching/fair_queue"),
                *("engine/batching/isolation", "engine/batching/pending"),
                *("engine/batching/report", "engine/batching/runners", "engine/worker"),
            )
        ),
        ("engine/model", {"app.api", "app.engine.batching.batcher"}),
        ("observability/metrics", {"app.api"}),
    ],
)
def test_imports_run_one_way(module: str, forbidden: set[str]) -> None:
    """Lower layers know nothing of higher ones; the batcher not even of text, ONNX or HTTP."""
    assert not _violations(ROOT / "app" / f"{module}.py", forbidden)


def test_only_the_server_knows_the_composition_root() -> None:
    """Nothing but server/run.py imports app.main, and nothing but cli.py the server."""
    cli, server = ROOT / "app/cli.py", ROOT / "app/server"
    others = [path for path in _modules("app", "model_export") if path.parent != server]
    assert not [line for path in others for line in _violations(path, {"app.main"})]
    others.remove(cli)
    assert not [line for path in others for line in _violations(path, {"app.server"})]


def test_package_files_are_empty() -> None:
    """Every __init__.py is empty: importing a package runs nothing and renames nothing."""
    inits = [path for path in _modules("app", "model_export") if path.name == "__init__.py"]
    assert {path.parent.name for path in inits} >= {"app", "api", "model_export"}
    assert not [path for path in inits if path.stat().st_size]


def test_starting_the_service_loads_no_export_package() -> None:
    """Importing all that serving imports leaves torch, transformers and the rest unloaded."""
    code = "import app.main, app.cli, sys; print(*{name.partition('.')[0] for name in sys.modules})"
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
