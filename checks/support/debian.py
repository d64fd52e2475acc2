"""Debian systems made by mmdebstrap, which find packages as this machine does."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CERTIFICATES = "/etc/pip-certificates.crt"  # not where Debian's package wants to write them
# What Debian's own image has, too, without documents and translations as in debian:12-slim.
MMDEBSTRAP = (
    *("mmdebstrap", "--quiet", "--variant=minbase"),
    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")),
)


def make(suite: str, target: Path, *packages: str, apt_options: Path | None = None) -> None:
    """Make a Debian of a suite, as a directory or an archive."""
    include = f"--include={','.join(['usr-is-merged', *packages])}"
    options = [f"--aptopt={apt_options}"] if apt_options else []
    command = [*MMDEBSTRAP, include, *options, suite, str(target)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def pip_sources(file: Path) -> Iterator[tuple[str, str]]:
    """Mounts, each with what and where, that let the pip of a Debian find packages as here.

    ``file`` becomes a configuration of pip with all that files and variables have told it here.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    if "cert" in found:
        yield found["cert"], CERTIFICATES
        found["cert"] = CERTIFICATES
    file.write_text("\n".join(["[global]", *(f"{name} = {found[name]}" for name in found)]))
    yield str(file), "/etc/pip.conf"
    paths = f"{found.get('find-links', '')} {found.get('constraint', '')}".split()
    yield from ((path, path) for path in paths if Path(path).exists())
