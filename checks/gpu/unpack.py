"""Unpacks what ``checks.gpu.pack`` has packed, and runs ``checks.gpu`` with it.

    python3 pieces/unpack.py [--into DIRECTORY] [options of checks.gpu]

Needs no network and nothing but this Python. The results are in DIRECTORY/results, or where
--results says, each row as soon as it is found. A command ends within nine minutes; give it again
for the steps that are left. What is unpacked stays.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=Path, default=Path("gpu-check"), metavar="DIRECTORY")
    parser.add_argument("--results", type=lambda name: Path(name).resolve(), metavar="DIRECTORY")
    options, others = parser.parse_known_args()
    into: Path = options.into.resolve()
    manifest = json.loads((HERE / "pieces.json").read_text(encoding="utf-8"))
    version = ".".join(map(str, sys.version_info[:2]))
    if version != manifest["python"]:
        parser.error(f"this was packed for Python {manifest['python']}, and this is {version}")
    if not (into / "site").is_dir():
        _unpack(manifest["pieces"], into, parser)
    path = os.pathsep.join(map(str, (into / "site", into / "app", into)))
    results = str(options.results or into / "results")
    command = [sys.executable, "-m", "checks.gpu", "--work", str(into / "work"), *others]
    command += ["--results", results]
    # There, so that no other package called checks is found first.
    return subprocess.run(command, cwd=into, env={**os.environ, "PYTHONPATH": path}).returncode


def _unpack(pieces: "dict[str, str]", into: Path, parser: argparse.ArgumentParser) -> None:
    partial, whole = into.with_name(f"{into.name}.partial"), into.with_name(f"{into.name}.whole")
    with whole.open("wb") as joined:
        for name, sha256 in pieces.items():
            if not (HERE / name).is_file():
                parser.error(f"{HERE / name} is missing; there are {len(pieces)} pieces")
            piece = (HERE / name).read_bytes()
            if hashlib.sha256(piece).hexdigest() != sha256:
                parser.error(f"{HERE / name} is damaged; bring it again")
            joined.write(piece)
    with tarfile.open(whole) as archive:
        archive.extractall(partial)  # noqa: S202 - its content has the packer's checksums
    whole.unlink()
    partial.rename(into)


if __name__ == "__main__":
    sys.exit(main())
