"""What is built and what is installed: the wheel, also beside users' own modules, and the locks."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import httpx2
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.service import free_port
from tests.support.serving import ROOT, environment, run_program

LOCKS = ROOT / "requirements"
SERVING_LOCKS = ["cpu.txt", "gpu.txt", "files.txt", "images.txt", "build.txt"]
EXPORT_ONLY = {"torch", "transformers", "optimum", "onnx", "scikit-learn", "scipy"}


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network of the source distribution as a ZIP archive.

    So source distribution and archive are ways in, too, and hold all that a build needs.
    """
    folder = tmp_path_factory.mktemp("wheel")
    sdist = [sys.executable, "-m", "hatchling", "build", "--target", "sdist"]
    subprocess.run([*sdist, "--directory", str(folder)], cwd=ROOT, check=True)
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as tar:
        tar.extractall(folder / "source", filter="data")
    zipped = shutil.make_archive(str(folder / "source"), "zip", folder / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(folder), zipped], check=True
    )
    (path,) = folder.glob("sentiment_service-*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> ZipFile:
    """It, opened."""
    return ZipFile(wheel_file)


def _metadata_file(wheel: ZipFile, name: str) -> bytes:
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path)


def _pins(lock: str) -> dict[str, str]:
    """Package name → version, and nothing but pins, comments and hashes in the file."""
    pins: dict[str, str] = {}
    for entry in _entries(lock):
        match = re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", entry)
        assert match, f"{lock} holds something else than a pin: {entry}"
        pins[canonicalize_name(match[1])] = match[2]
    assert pins
    return pins


def _entries(lock: str) -> list[str]:
    text = (LOCKS / lock).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line]


def test_wheel_carries_the_service_the_exporter_and_the_embedded_model(wheel: ZipFile) -> None:
    """Every tracked file of app/ and model_export/, byte for byte, without these two folders."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "app", "model_export"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [Path(name) for name in listed.stdout.split("\0") if name]
    tracked = {str(Path(*path.parts[1:])): path for path in paths}
    assert {
        "sentiment_client.py",
        "sentiment_client/py.typed",
        "sentiment_export/cli.py",
        "sentiment_service/models/minilm-l6-tweet-sentiment/onnx/model_int8.onnx",
        "sentiment_service/py.typed",
        "sentiment_service/web/index.html",
    } <= tracked.keys()
    assert tracked.keys() <= set(wheel.namelist())
    assert not [
        name for name, path in tracked.items() if wheel.read(name) != (ROOT / path).read_bytes()
    ]


# What a user writes: it gives or takes the types of what the client and `Classifier` give.
PROGRAM = """
from typing import assert_type
from sentiment_client import AsyncClient, Client, Results
from sentiment_service import Classifier

def label(client: Client | Classifier) -> str:
    return client.classify("I love this!").label

def columns(client: Client | Classifier) -> list[str | None]:
    results = client.classify(["worst service ever", ""])
    assert_type(results, Results)
    return [results[1].code, *(one.label or one.message for one in results)]

async def labels(client: AsyncClient) -> list[str | None]:
    return [one.label or one.code async for one in client.classify_iter(["I love this!"])]
"""


def test_programs_of_users_have_types(wheel_file: Path, tmp_path: Path) -> None:
    """mypy knows the types of what an installed wheel has, of the client as well.

    The client is one file, so a directory of its name holds its py.typed; Python imports the file.
    """
    home, program = tmp_path / "environment", tmp_path / "program.py"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = str(home / "bin/python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", str(wheel_file)], check=True)
    program.write_text(PROGRAM, encoding="utf-8")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, str(program)]
    done = run_program(*mypy, cwd=tmp_path, PYTHONPATH="")
    assert done.returncode == 0, done.stdout
    code = "import sentiment_client; print(sentiment_client.__file__)"
    done = run_program(python, "-c", code, cwd=tmp_path, PYTHONPATH="")
    assert Path(done.stdout.strip()).name == "sentiment_client.py", done.stderr
    assert home in Path(done.stdout).parents


def test_wheel_brings_both_commands_and_the_licence(wheel: ZipFile) -> None:
    """Installing the wheel gives `sentiment` and `sentiment-export`, and the Apache-2.0 text."""
    commands = _metadata_file(wheel, "entry_points.txt").decode()
    assert "sentiment = sentiment_service.__main__:main" in commands
    assert "sentiment-export = sentiment_export.__main__:main" in commands
    assert b"Apache License" in _metadata_file(wheel, "licenses/LICENSE")


def test_a_plain_install_brings_nothing_to_export_with(wheel: ZipFile) -> None:
    """Without an extra, the wheel asks for what serving needs and for no export package."""
    fields = message_from_bytes(_metadata_file(wheel, "METADATA")).get_all("Requires-Dist") or []
    base = {field for field in fields if "extra ==" not in field}
    names = {canonicalize_name(Requirement(field).name) for field in base}
    assert {"fastapi", "tokenizers"} <= names
    assert not names & EXPORT_ONLY


@pytest.mark.parametrize("lock", SERVING_LOCKS)
def test_every_locked_package_has_a_hash(lock: str) -> None:
    """pip accepts the lock only if each package is the very file that was resolved."""
    entries = _entries(lock)
    assert entries
    assert not [entry for entry in entries if "--hash=sha256:" not in entry]


@pytest.mark.parametrize("lock", [*SERVING_LOCKS, "dev.txt"])
def test_locks_name_no_registry(lock: str) -> None:
    """A lock works with any index or mirror: no address, no index option, no absolute path."""
    text = (LOCKS / lock).read_text(encoding="utf-8")
    found = re.findall(r"://|--(?:extra-)?index|--find-links|--trusted-host| @ |[\s=]/\w", text)
    assert not found


@pytest.mark.parametrize("lock", SERVING_LOCKS)
def test_serving_locks_hold_no_export_package(lock: str) -> None:
    """What `make serve` installs contains neither torch nor transformers nor the exporter.

    The images export BERT's family, which needs onnx.
    """
    allowed = {"onnx"} if lock == "images.txt" else set()
    assert _pins(lock).keys() & EXPORT_ONLY == allowed


@pytest.mark.parametrize("hardware", ["cpu.txt", "gpu.txt"])
def test_the_images_have_what_an_export_needs(wheel: ZipFile, hardware: str) -> None:
    """The locks of a serving image hold every package of the extra `export`."""
    fields = message_from_bytes(_metadata_file(wheel, "METADATA")).get_all("Requires-Dist") or []
    extra = {Requirement(field).name for field in fields if "extra == 'export'" in field}
    assert extra
    assert {canonicalize_name(name) for name in extra} <= _pins(hardware).keys() | _pins(
        "images.txt"
    ).keys()


@pytest.mark.parametrize("lock", SERVING_LOCKS)
def test_development_set_changes_no_serving_package(lock: str) -> None:
    """dev.txt pins what it shares with a serving lock to the same version, and no runtime."""
    serving, dev = _pins(lock), _pins("dev.txt")
    shared = serving.keys() & dev.keys()
    assert shared
    assert {name: serving[name] for name in shared} == {name: dev[name] for name in shared}
    assert not [name for name in dev if name.startswith("onnxruntime")]


@pytest.mark.parametrize(
    ("locks", "extras"),
    [
        (["cpu.txt", "files.txt"], ["cpu", "files"]),
        (["gpu.txt"], ["gpu"]),
        (["cpu.txt", "images.txt"], ["grpc", "otel"]),
        (["cpu.txt", "dev.txt"], ["otel", "grpc", "export", "torch", "dev", "pictures"]),
    ],
)
def test_locks_answer_what_the_project_asks_for(locks: list[str], extras: list[str]) -> None:
    """Each declared dependency is locked to a version in its range: no lock is out of date."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = project["dependencies"] + [
        line for extra in extras for line in project["optional-dependencies"][extra]
    ]
    pins = {name: version for lock in locks for name, version in _pins(lock).items()}
    for requirement in map(Requirement, asked):
        version = pins.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is not locked"
        assert version in requirement.specifier


# `Classifier` in projects of users whose own package or module is called app.
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
                # gunicorn listens before it has loaded the project.
                yield httpx2.get(f"http://127.0.0.1:{port}", timeout=60).json()
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
