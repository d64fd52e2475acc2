"""Without an optional package, each command says in one line which extra to install, and how."""

import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sentiment_service.installation import (
    EXPORT_COMMAND,
    EXTRAS,
    IMAGE,
    install_command,
    missing_extra,
)

from tests.conftest import Start
from tests.support.serving import ROOT, patched, run_program

EMBEDDED = str(ROOT / "app/sentiment_service/models/minilm-l6-tweet-sentiment")
RUN = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if (name + '.').startswith({hidden}):
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Hidden())
from {package} import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("hidden", "extra", "command"),
    [
        ("onnxruntime", "cpu", "sentiment serve"),
        ("onnxruntime", "cpu", "sentiment classify hello"),
        ("grpc", "grpc", "sentiment serve --port 0 --grpc-port 1"),
        ("opentelemetry.sdk", "otel", "sentiment serve --otlp-endpoint http://x"),
        ("httpx", "files", "sentiment classify --url http://127.0.0.1:9 hello"),
        ("pyarrow", "files", "sentiment classify --input x.parquet"),
        ("pyarrow", "files", "sentiment classify --input x.txt.zst"),
        ("openpyxl", "files", "sentiment classify --input x.xlsx"),
        ("onnx", "export", "sentiment-export . --output bundle"),
        ("huggingface_hub", "hub", "sentiment-export describe source"),
        ("onnxruntime", "cpu", f"sentiment-export evaluate {EMBEDDED} file.tsv"),
        (
            "transformers",
            "torch",
            "sentiment-export finetune base --train a --validation b --output c",
        ),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, hidden: str, extra: str, command: str
) -> None:
    """One line on standard error and exit code 1, without a traceback.

    Of several that are missing, it is the one without which no other helps.
    """
    for name in ("x.parquet", "x.xlsx", "x.txt.zst"):
        (tmp_path / name).touch()
    (tmp_path / "file.tsv").write_text("tweets\tpositive\tlove it\n")
    program, *words = shlex.split(command)
    package = {"sentiment": "sentiment_service.cli.command"}.get(program, "sentiment_export.cli")
    code = RUN.format(hidden=tuple(f"{name}." for name in hidden.split()), package=package)
    done = run_program(sys.executable, "-c", code, *words, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]  # `serve` first logs port and model
    assert f"the package {re.split('[. ]', hidden)[0]}, which the extra '{extra}'" in line
    assert f"installs: run {install_command(extra)}" in line
    assert ("-m uv pip install" in line and "--torch-backend cpu" in line) == (extra == "torch")


def test_an_image_names_the_image_that_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image has no pip, so the error has no such command; it says what to use instead."""
    monkeypatch.setattr(sys, "prefix", IMAGE)
    assert str(missing_extra(ModuleNotFoundError(name="torch"))).endswith(EXPORT_COMMAND)
    assert str(missing_extra(ModuleNotFoundError(name="pyspark"))).endswith("without an image")


def test_the_command_installs_into_the_environment_that_runs() -> None:
    """pip of the running Python takes it: this installation, an editable one, with the extra.

    pip resolves it, but installs nothing.
    """
    command = install_command("grpc")
    assert command.startswith(shlex.join([sys.executable, "-m", "pip", "install"]))
    assert f"{ROOT}[grpc]" in command
    offline = ["--dry-run", "--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
    done = run_program(*shlex.split(command), *offline, "--report", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["install"][0]["requested_extras"] == ["grpc"]


@pytest.mark.parametrize(
    ("source", "requirement"),
    [
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, "'/a b[cpu]'"),
        ({"url": "file:///a", "dir_info": {}}, "'sentiment-service[cpu] @ file:///a'"),
        (
            {"url": "https://x.org/s-1-py3-none-any.whl", "archive_info": {}},
            "'sentiment-service[cpu] @ https://x.org/s-1-py3-none-any.whl'",
        ),
        (
            {"url": "https://x.org/s", "vcs_info": {"vcs": "git", "commit_id": "1f"}},
            "'sentiment-service[cpu] @ git+https://x.org/s@1f'",
        ),
        (None, "'sentiment-service[cpu]'"),
    ],
)
def test_an_extra_comes_from_where_the_package_came_from(
    monkeypatch: pytest.MonkeyPatch, source: dict[str, Any] | None, requirement: str
) -> None:
    """A clone, a wheel, a repository, or the index: what pip recorded is installed again."""
    monkeypatch.setattr(
        importlib.metadata.PathDistribution,
        "read_text",
        lambda *_: source and json.dumps(source),
    )
    assert install_command("cpu").endswith(f" {requirement}")


def test_a_plain_start_needs_no_extra(start: Start) -> None:
    """Without their flags, the packages for traces and for gRPC are not even looked for."""
    without = patched("sys.modules |= dict.fromkeys(('opentelemetry.sdk', 'grpc'))")
    process = start(command=without, popen=subprocess.Popen)
    assert process.client.get("/health/ready").status_code == 200


def test_the_client_names_the_package_that_it_needs() -> None:
    """A client without httpx fails with an ImportError that says how to get it."""
    code = "import sys; sys.modules['httpx'] = None; from sentiment_client import Client; Client()"
    done = run_program(sys.executable, "-c", code)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: sentiment_client needs the package httpx (0.28 or newer): run "
        f"{shlex.quote(sys.executable)} -m pip install 'httpx>=0.28'"
    )


@pytest.mark.parametrize(
    ("method", "package", "version"),
    [("plot", "matplotlib", "3.10"), ("to_frame", "pandas", "2.2"), ("to_arrow", "pyarrow", "18")],
)
def test_results_name_the_package_that_they_need(method: str, package: str, version: str) -> None:
    """Without it, a plot or a table of results fails with one line that says how to get it."""
    code = f"import sys; sys.modules['{package}'] = None; import sentiment_client as c; "
    done = run_program(sys.executable, "-c", f"{code}c.Results([], ()).{method}()")
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: {method}() needs the package {package} ({version} or newer): run "
        f"{shlex.quote(sys.executable)} -m pip install '{package}>={version}'"
    )


def test_each_extra_exists() -> None:
    """The table names extras of pyproject.toml only."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{extra} = [" in text for extra in set(EXTRAS.values()))
