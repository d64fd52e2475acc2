"""Packs what ``checks.gpu`` needs into pieces, for a machine with a GPU and without network.

    .venv/bin/python -m checks.gpu.pack pieces --python 3.12 --capability 9.0

Bring the directory there, and run ``python3 pieces/unpack.py``. The machine needs Linux on x86-64,
that Python, NVIDIA's driver, and PyTorch for CUDA 13, which brings CUDA's libraries. The pieces
hold everything else: the service, the checks, their packages in the versions of this environment,
and the graphs, which get their weights there.
"""

import argparse
import hashlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from checks.gpu.graphs import make
from checks.gpu.setup import Setup
from checks.gpu.slim import slim

ROOT = Path(__file__).parents[2]
SERVICE = "sentiment-service"
SOURCES = ("app", "checks/__init__.py", "checks/gpu", "benchmarks")
EMBEDDED = "app/sentiment_service/models/"  # no step uses this model, and it does not compress
# NumPy is there with PyTorch. Nothing is downloaded with hf-xet.
LEFT_OUT = {"numpy", "hf-xet"}
PIECE_BYTES = 30 * 2**20
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
CUDA_LIBRARY = "onnxruntime/capi/libonnxruntime_providers_cuda.so"
# The other provider, and the core for programs in C, which Python's module contains.
UNUSED = ("libonnxruntime_providers_tensorrt.so", "libonnxruntime.so.*")


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(Path(folder) / "work", "cuda")
        make(setup)
        wheels, site = Path(folder) / "wheels", Path(folder) / "site"
        download(wheels, requirements(), options.python)
        install(wheels, site)
        for pattern in UNUSED:
            for library in (site / CUDA_LIBRARY).parent.glob(pattern):
                library.unlink()
        print("machine code, bytes:", slim(site / CUDA_LIBRARY, options.capability))
        pieces = pack(options.out, site, setup, options.python, PIECE_BYTES)
    total = sum((options.out / name).stat().st_size for name in pieces)
    print(f"{len(pieces)} pieces, {total / 2**20:.0f} MiB; there: python3 {options.out}/unpack.py")
    return 0


def requirements() -> list[str]:
    """The packages of the service and of its load, as installed here, and those for GPUs."""
    needed = _needed(SERVICE, frozenset({"gpu"}), {})
    return [f"{name}=={version}" for name, version in sorted(needed.items())]


def _needed(package: str, extras: frozenset[str], found: dict[str, str]) -> dict[str, str]:
    """The versions of all that a package needs here, directly or not, by name."""
    for text in importlib.metadata.requires(package) or ():
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        asked = marker is None or any(marker.evaluate({"extra": one}) for one in ("", *extras))
        if not asked or name in found or name in LEFT_OUT:
            continue
        here = name.removesuffix("-gpu")
        try:
            found[name] = importlib.metadata.version(here)
            _needed(here, frozenset(requirement.extras), found)
        except importlib.metadata.PackageNotFoundError:
            found[name] = _locked(name)
    return found


def _locked(name: str) -> str:
    """The version of a package that is installed for GPUs only."""
    lines = (ROOT / "requirements/gpu.txt").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}=="))
    return line.partition("==")[2].split()[0]


def download(wheels: Path, packages: Sequence[str], python: str) -> None:
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    words = ["--no-deps", "--only-binary", ":all:", "--python-version", python, *platforms]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    subprocess.run([*pip, *words, "--dest", str(wheels), *packages], check=True)


def install(wheels: Path, site: Path) -> None:
    """Put the wheels' content into one directory for Python's path, without their programs."""
    site.mkdir()
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)  # noqa: S202 - a wheel that pip has downloaded


def pack(out: Path, site: Path, setup: Setup, python: str, piece_bytes: int) -> list[str]:
    """Write the pieces and what unpacks them into ``out``; returns the pieces' names."""
    out.mkdir(parents=True)
    whole = out / "whole"
    with tarfile.open(whole, "w:xz") as archive:
        archive.add(site, "site")
        metadata = Path(str(importlib.metadata.distribution(SERVICE).locate_file("")))
        for information in metadata.glob(f"{SERVICE.replace('-', '_')}-*.dist-info"):
            archive.add(information, f"site/{information.name}")
        for name in _sources():
            archive.add(ROOT / name, name, recursive=False)
        for bundle in setup.work.glob("*-bundle"):
            archive.add(bundle, f"work/{bundle.name}", filter=_without_weights)
    pieces: dict[str, str] = {}
    with whole.open("rb") as packed:
        while piece := packed.read(piece_bytes):
            name = f"piece.{len(pieces):03}"
            (out / name).write_bytes(piece)
            pieces[name] = hashlib.sha256(piece).hexdigest()
    whole.unlink()
    manifest = {"python": python, "pieces": pieces}
    (out / "pieces.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    shutil.copy(Path(__file__).with_name("unpack.py"), out)
    return list(pieces)


def _without_weights(file: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what is made of a seed there."""
    return None if file.name.endswith("_data") else file


def _sources() -> list[str]:
    """The tracked files of the service, the checks and what they use, but no model."""
    listed = subprocess.run(
        ["git", "ls-files", *SOURCES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.splitlines() if not name.startswith(EMBEDDED)]


def _capability(text: str) -> int:
    major, _, minor = text.partition(".")
    return 10 * int(major) + int(minor)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "checks.gpu.pack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="directory for the pieces, which must not exist")
    parser.add_argument("--python", required=True, help="version of Python there, such as 3.12")
    parser.add_argument(
        "--capability",
        type=_capability,
        required=True,
        help="compute capability of the GPU there, such as 9.0; code for others is left out",
    )
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"{options.out} exists already")
    return options


if __name__ == "__main__":
    sys.exit(main())
