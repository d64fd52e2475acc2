"""`Classifier` in projects of users whose own package or module is called app."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from benchmarks.service import free_port
from tests.support.serving import environment

OURS, THEIRS = "from sentiment_service import Classifier", "from {util} import GREETING"
FASTAPI = """
from fastapi import FastAPI
{imports}
import sentiment_service
app = FastAPI()
classifier = Classifier({bundle!r}, runners=1, threads=1)
@app.get("/")
def index() -> list[str]:
    return [classifier.classify("love").label, GREETING, sentiment_service.__file__]
"""
FLASK = FASTAPI.replace("fastapi", "flask").replace("FastAPI()", "Flask(__name__)")
FLASK = FLASK.replace("FastAPI", "Flask").replace("-> list[str]", "")
# By what a user types: the program, and whether the project is a package or one file.
COMMANDS = {
    "uvicorn app.main:app": (FASTAPI, "app/main.py", ["--port", "{port}"]),
    "uvicorn app:app": (FASTAPI, "app.py", ["--port", "{port}"]),
    "flask run": (FLASK, "app.py", ["--port", "{port}"]),
    "flask --app app.main run": (FLASK, "app/main.py", ["--port", "{port}"]),
    "gunicorn app:app": (FLASK, "app.py", ["--bind", "127.0.0.1:{port}"]),
    "gunicorn app.main:app": (FLASK, "app/main.py", ["--bind", "127.0.0.1:{port}"]),
}


@pytest.fixture(scope="module")
def site(wheel_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the installed wheel."""
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--no-compile"]
    subprocess.run([*pip, "--target", str(site), str(wheel_file)], check=True)
    return site


@contextmanager
def _answer_of(words: Sequence[str], project: Path, site: Path | None) -> Iterator[list[str]]:
    """What the project answers while its server runs."""
    port = free_port()
    variables = environment(SENTIMENT_MAX_BATCH_TOKENS="512", PYTHONPATH=str(site or ""))
    process = subprocess.Popen(
        [sys.executable, "-m", *(word.format(port=port) for word in words)],
        cwd=project,
        env=variables,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for _ in range(600):
            assert process.poll() is None, process.stderr and process.stderr.read()
            try:
                yield httpx2.get(f"http://127.0.0.1:{port}").json()
                return
            except httpx2.ConnectError:
                time.sleep(0.1)
        pytest.fail("the project's server does not answer")
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _project(folder: Path, command: str, bundle: Path, order: str) -> Path:
    """A user's project, which imports this package before or after its own module."""
    source, name, _ = COMMANDS[command]
    util = "app.util" if "/" in name else "util"
    imports = [OURS, THEIRS.format(util=util)]
    imports = imports if order == "ours first" else imports[::-1]
    main = folder / name
    main.parent.mkdir(exist_ok=True)
    if main.parent != folder:
        (main.parent / "__init__.py").touch()
    main.write_text(source.format(imports="\n".join(imports), bundle=str(bundle)), encoding="utf-8")
    (main.parent / "util.py").write_text('GREETING = "theirs"\n', encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("command", "order"),
    [
        *((command, "ours last") for command in COMMANDS),
        ("uvicorn app.main:app", "ours first"),
        ("flask run", "ours first"),
    ],
)
def test_a_project_named_app_classifies(
    command: str, order: str, site: Path, bundle: Path, tmp_path: Path
) -> None:
    """From an installed wheel, it finds its own modules and ours, whatever it imports first."""
    project = _project(tmp_path, command, bundle, order)
    with _answer_of([*command.split(), *COMMANDS[command][2]], project, site) as answer:
        assert answer == ["positive", "theirs", str(site / "sentiment_service/__init__.py")]


def test_a_project_named_app_beside_an_editable_install(bundle: Path, tmp_path: Path) -> None:
    """The folders app/ and model_export/ of a clone are not packages to its users either."""
    command = "uvicorn app.main:app"
    project = _project(tmp_path, command, bundle, "ours last")
    with _answer_of([*command.split(), *COMMANDS[command][2]], project, None) as answer:
        assert answer[:2] == ["positive", "theirs"]
        assert not answer[2].startswith(str(tmp_path))


def test_an_installation_has_no_name_but_its_own(site: Path) -> None:
    """What pip records as installed lies in the three names that are ours, or is a command."""
    (record,) = site.glob("sentiment_service-*.dist-info/RECORD")
    lines = record.read_text(encoding="utf-8").splitlines()
    paths = [Path(line.partition(",")[0]) for line in lines]
    assert {path.parts[0] for path in paths if path.parts[0] != os.pardir} - {
        "bin",
        "__pycache__",
    } == {
        "sentiment_client",  # its py.typed
        "sentiment_client.py",
        "sentiment_export",
        "sentiment_service",
        record.parent.name,
    }
    commands = {path.name for path in paths if "bin" in path.parts}
    assert commands == {"sentiment", "sentiment-export"}
