"""Generates clients from the service's OpenAPI document and calls it with them, and with Hugging
Face's client for JavaScript.

Java, npm and Go are the system's; the generators themselves are kept in the user's cache directory.
"""

import hashlib
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from checks.support.environments import CACHE, InstallFailed, python

CALLS = Path(__file__).parent / "generated"
REQUIREMENTS = Path(__file__).parent / "requirements"
DOCUMENT = "openapi.json"
# The only operation with a media type that openapi-python-client does not know.
STREAM = "/classify/stream"
# Debian's copy of the package that generated clients for Go import. Without it, Go loads it.
VALIDATOR = Path("/usr/share/gocode/src/gopkg.in/validator.v2")
VALIDATOR_MODULE = "gopkg.in/validator.v2"
CLIENT_MODULE = "github.com/GIT_USER_ID/GIT_REPO_ID"  # unless the generator is told another name
TYPESCRIPT = ("--strict", "--target", "es2022", "--module", "nodenext", "--types", "node")


class Missing(Exception):
    """A command that a generator needs is not installed."""


def problem_of(check: Callable[[Path, str], None], url: str) -> str:
    """What went wrong in a folder of its own; empty if nothing did."""
    with TemporaryDirectory() as folder:
        urllib.request.urlretrieve(f"{url}/openapi.json", Path(folder, DOCUMENT))  # noqa: S310
        try:
            check(Path(folder), url)
        except Missing as missing:
            return f"{'FAILED' if os.environ.get('CI') else 'not run'}: {missing} is not installed"
        except InstallFailed:
            return "FAILED: the generator could not be installed; see above why"
        except subprocess.CalledProcessError as error:
            return f"FAILED: {' '.join(map(str, error.cmd))}\n{error.stdout}"
    return ""


def openapi_python_client(folder: Path, url: str) -> None:
    """Generate with the defaults; no operation may be left out."""
    interpreter = python(REQUIREMENTS / "openapi_python_client.txt")
    path = f"{interpreter.parent}:{os.environ['PATH']}"  # it formats with ruff
    generate = ["generate", "--path", DOCUMENT, "--output-path", "client"]
    said = run([interpreter.parent / "openapi-python-client", *generate], folder, PATH=path)
    warnings = [line for line in said.splitlines() if line.startswith("WARNING")]
    if [line for line in warnings if STREAM not in line]:
        raise subprocess.CalledProcessError(1, generate, said)
    script = CALLS / "call_openapi_python_client.py"
    run([interpreter, script, url], folder, PYTHONPATH=str(folder / "client"))


def openapi_generator_python(folder: Path, url: str) -> None:
    _openapi_generator("python", folder)
    script = CALLS / "call_openapi_generator.py"
    interpreter = python(REQUIREMENTS / "openapi_generator.txt")
    run([interpreter, script, url], folder, PYTHONPATH=str(folder / "client"))


def typescript_fetch(folder: Path, url: str) -> None:
    """Generate with ES modules, compile strictly and call."""
    _openapi_generator("typescript-fetch", folder, "importFileExtension=.js")
    _compile_and_call("call_typescript_fetch", folder, url)


def openapi_typescript(folder: Path, url: str) -> None:
    """Generate types, compile strictly and call with openapi-fetch."""
    command = node_modules() / ".bin/openapi-typescript"
    run([command, DOCUMENT, "--default-non-nullable=false", "-o", "types.ts"], folder)
    _compile_and_call("call_openapi_typescript", folder, url)


def huggingface(folder: Path, url: str) -> None:
    """Compile strictly and call with @huggingface/inference."""
    _compile_and_call("call_huggingface", folder, url)


def go(folder: Path, url: str) -> None:
    program = found("go")
    _openapi_generator("go", folder)
    shutil.copy(CALLS / "call_go.go", folder / "main.go")
    modules = ["module call", f"require {CLIENT_MODULE} v0.0.0"]
    modules.append(f"replace {CLIENT_MODULE} => ./client")
    if VALIDATOR.is_dir():
        shutil.copytree(VALIDATOR, folder / "validator")
        Path(folder, "validator/go.mod").write_text(f"module {VALIDATOR_MODULE}\n")
        modules.append(f"replace {VALIDATOR_MODULE} => ./validator")
    Path(folder, "go.mod").write_text("\n".join([*modules, ""]))
    run([program, "run", "-mod=mod", ".", url], folder)


GENERATORS: dict[str, Callable[[Path, str], None]] = {
    "openapi-python-client": openapi_python_client,
    "openapi-generator-python": openapi_generator_python,
    "openapi-generator-typescript-fetch": typescript_fetch,
    "openapi-generator-go": go,
    "openapi-typescript": openapi_typescript,
    "huggingface-inference": huggingface,
}


def _openapi_generator(language: str, folder: Path, *properties: str) -> None:
    found("java")
    program = python(REQUIREMENTS / "openapi_generator.txt").parent / "openapi-generator-cli"
    command: list[str | Path] = [program, "generate"]
    options = [f"--additional-properties={one}" for one in properties]
    run([*command, "-i", DOCUMENT, "-g", language, "-o", "client", *options], folder)


def _compile_and_call(name: str, folder: Path, url: str) -> None:
    modules = node_modules()
    (folder / "node_modules").symlink_to(modules)
    shutil.copy(CALLS / "package.json", folder)
    shutil.copy(CALLS / f"{name}.ts", folder)
    run([modules / ".bin/tsc", *TYPESCRIPT, f"{name}.ts"], folder)
    run([found("node"), f"{name}.js", url], folder)


def node_modules() -> Path:
    """The packages of ``package-lock.json``, which are installed if they are not."""
    npm, lock = found("npm"), CALLS / "package-lock.json"
    folder = CACHE / f"node-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    complete = folder / ".complete"
    if not complete.exists():
        print("platform-check: installing packages for Node", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(CALLS / "package.json", folder)
        shutil.copy(lock, folder)
        if subprocess.run([npm, "ci", "--silent"], cwd=folder, check=False).returncode:
            raise InstallFailed
        complete.touch()
    return folder / "node_modules"


def found(command: str) -> str:
    if (path := shutil.which(command)) is None:
        raise Missing(command)
    return path


def run(command: Sequence[str | Path], folder: Path, **variables: str) -> str:
    """Run a command in the folder; what it said."""
    environment = {**os.environ, "NO_PROXY": "*", **variables}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout
