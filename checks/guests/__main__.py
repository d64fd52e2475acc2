"""Whether this package fits beside the newest libraries of users: ``make guest-check``.

Each library is resolved alone and with each extra of our wheel. A package that is older with us is
held back by us, and the check fails. Then ``Classifier`` runs beside datasets and transformers, and
the pages' Python in a notebook.
"""

import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE

from benchmarks.service import ROOT, Service
from checks.support.environments import WHEELS, WITHOUT_WHEELS, build_wheel

GUESTS = (
    *("datasets", "transformers", "sentence-transformers", "gradio", "pandas", "polars"),
    *("scikit-learn", "jupyterlab", "ray[data]", "pyspark", "mlflow"),
)
# For this clone alone.
NOT_FOR_USERS = "dev"
AT_ONCE = 4  # resolutions, which wait for the index most of the time
TOGETHER = ("datasets", "transformers")
NOTEBOOK = ("nbclient", "ipykernel", "pandas")  # of jupyterlab
CLASSIFY = """
import datasets, huggingface_hub, transformers
from sentiment_service import Classifier
texts = datasets.Dataset.from_dict({"text": ["I love this!", "I hate this."]})
with Classifier() as classifier:
    labels = [result.label for result in classifier.classify(list(texts["text"]))]
assert labels == ["positive", "negative"], labels
print(*(f"{m.__name__} {m.__version__}" for m in (datasets, transformers, huggingface_hub)))
"""
PYTHON = "3.11"

Versions = dict[str, Version]


class Unresolved(Exception):
    """The packages exclude each other; the message is what uv says."""


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [extra for extra in project["optional-dependencies"] if extra != NOT_FOR_USERS]
    for package in WITHOUT_WHEELS:
        build_wheel(package)
    with tempfile.TemporaryDirectory() as folder:
        wheel = built(Path(folder))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            failed = sum(pool.map(lambda guest: not welcome(guest, extras, wheel), GUESTS))
        failed += not together(Path(folder) / "venv", wheel)
    return int(failed > 0)


def built(folder: Path) -> Path:
    command = ("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    subprocess.run([sys.executable, "-m", *command, "--wheel-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def welcome(guest: str, extras: list[str], wheel: Path) -> bool:
    """Print what each extra does to a guest; whether it holds nothing back."""
    try:
        alone = resolved(guest)
    except Unresolved as error:
        print(f"guest-check: {guest}: FAILED alone: {error}", flush=True)
        return False
    problems = []
    for extra in extras:
        ours = f"sentiment-service[{extra}] @ {wheel.as_uri()}"
        try:
            held = held_back(alone, resolved(guest, ours))
            if held:  # where newest versions exclude each other, uv gives up one of its own choice
                beside = resolved(guest, ours, *(f"{name}>={alone[name]}" for name in held))
                held = held_back(alone, beside)
        except Unresolved as error:
            held = {guest: str(error)}
        problems += [f"FAILED with [{extra}]: {why}" for why in held.values()]
    version = alone[Requirement(guest).name]
    for line in problems or [f"nothing is held back by {', '.join(extras)}"]:
        print(f"guest-check: {guest} {version}: {line}", flush=True)
    return not problems


def held_back(alone: Versions, beside: Versions) -> dict[str, str]:
    """What happens to each package that is older where we are installed as well, by its name."""
    return {
        name: f"{name} {version} becomes {beside[name]}"
        for name, version in alone.items()
        if name in beside and beside[name] < version
    }


def resolved(*requirements: str) -> Versions:
    """The newest versions that fit together, by name. Only metadata is downloaded."""
    command = (*("pip", "compile", "--quiet", "--no-header", "--no-annotate"), "-")
    done = subprocess.run(
        [sys.executable, "-m", "uv", *command, "--python-version", PYTHON, "--find-links", WHEELS],
        input="\n".join(requirements),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unresolved(" ".join(done.stderr.split())[:500])
    pins = (Requirement(line) for line in done.stdout.splitlines())
    return {pin.name: Version(next(iter(pin.specifier)).version) for pin in pins if pin.url is None}


def together(folder: Path, wheel: Path) -> bool:
    """Run the classifier in an environment with guests; whether it answers."""
    ours = f"sentiment-service[cpu,files] @ {wheel.as_uri()}"
    uv = (sys.executable, "-m", "uv", "--quiet")
    interpreter = folder / "bin/python"
    program = (str(interpreter), "-m", "sentiment_service")
    installed = run(*uv, "venv", "--python", sys.executable, folder) and run(
        *uv, "pip", "install", "--python", interpreter, *TOGETHER, *NOTEBOOK, ours
    )
    said = f"guest-check: Classifier beside {' and '.join(TOGETHER)}, and in a notebook"
    if not (installed and run(interpreter, "-I", "-c", CLASSIFY)):
        print(f"{said}: FAILED", flush=True)
        return False
    with Service(EMBEDDED_BUNDLE, program=program) as service:
        notebook = Path(__file__).with_name("notebook.py")
        works = run(interpreter, "-I", notebook, ROOT, service.url)
    print(f"{said}: {'ok' if works else 'FAILED'}", flush=True)
    return works


def run(*command: str | Path) -> bool:
    """Whether the command succeeds; its output is shown."""
    return subprocess.run(command, check=False, cwd=tempfile.gettempdir()).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
