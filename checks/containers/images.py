"""The images: what they are built from, and what is in them."""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.service import ROOT
from checks.containers.engine import HARDENED, Engine, EngineError

CPU, EXPORT, GPU = (f"sentiment-service:{target}" for target in ("cpu", "export", "gpu"))
# For Compose and nginx.conf, whose own images may be out of reach.
TOOLS = "sentiment-check:tools"
DEBIANS = """
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update && apt-get install --yes --no-install-recommends prometheus nginx-light && \\
    install --directory --owner=65534 /prometheus && chmod 777 /var/lib/nginx /var/log/nginx
"""
USER = "10001:10001"
STAND_IN = "sentiment-check:debian-12"
BUILD_S = 600
CERTIFICATES = "/etc/pip-certificates.crt"  # not where Debian's package wants to write them
# What Debian's own image has, too, without documents and translations as in debian:12-slim.
MMDEBSTRAP = (
    *("mmdebstrap", "--quiet", "--variant=minbase", "--include=usr-is-merged"),
    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")),
    "bookworm",
)


def base_image(engine: Engine) -> str:
    """The Dockerfile's base image, or a stand-in with the same packages where it is out of reach.

    Raises:
        EngineError: neither can be had.
    """
    (image,) = re.findall(r"^ARG BASE_IMAGE=(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    if engine.has_image(image):
        return str(image)
    if not engine.has_image(STAND_IN):
        with tempfile.TemporaryDirectory() as folder:
            archive = f"{folder}/debian.tar"
            try:
                subprocess.run([*MMDEBSTRAP, archive], check=True, capture_output=True, text=True)
            except FileNotFoundError:
                raise EngineError(f"{image} is out of reach, and mmdebstrap is not here") from None
            except subprocess.CalledProcessError as error:
                raise EngineError(f"{image} is out of reach; {error.stderr[-300:]}") from None
            engine.run("import", archive, STAND_IN)
    return STAND_IN


def build(base: str, target: str, engine: Engine) -> str:
    """Build a target of the Dockerfile; its base image.

    Raises:
        EngineError: the build failed.
    """
    _build(engine, base, f"sentiment-service:{target}", "--target", target, str(ROOT))
    return f"base image {base}"


def build_tools(base: str, engine: Engine) -> str:
    """Build the image with Debian's Prometheus and nginx.

    Raises:
        EngineError: the build failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text(DEBIANS)
        _build(engine, base, TOOLS, folder)
    return "Debian's Prometheus and nginx"


def _build(engine: Engine, base: str, tag: str, *arguments: str) -> None:
    options = ["--tag", tag, "--build-arg", f"BASE_IMAGE={base}"]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as pip:
        if engine.name == "podman":
            # Docker's format, because OCI's has no health check. In a chroot, because on some
            # machines a build cannot have namespaces of its own.
            options += ["--format", "docker", "--isolation", "chroot", "--network", "host"]
            options += [f"--volume={mount}:ro" for mount in _package_sources(Path(pip.name))]
        engine.run("build", *options, *arguments, seconds=BUILD_S)


def _package_sources(file: Path) -> Iterator[str]:
    """Mounts that let apt and pip of a build find packages as this machine does.

    ``file`` becomes a configuration of pip with all that files and variables have told it here.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    if "cert" in found:
        yield f"{found['cert']}:{CERTIFICATES}"
        found["cert"] = CERTIFICATES
    file.write_text("\n".join(["[global]", *(f"{name} = {found[name]}" for name in found)]))
    yield f"{file}:/etc/pip.conf"
    wheels = found.get("find-links", "").split()
    yield from (f"{path}:{path}" for path in ("/etc/apt", *wheels) if Path(path).is_dir())


def content(engine: Engine) -> str:
    """Each image has its user, its labels and nothing to build with; the sizes."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    sizes = []
    for image in (CPU, EXPORT):
        user = engine.run("image", "inspect", "--format", "{{.Config.User}}", image)
        assert user == USER, f"{image}: the user is {user or 'root'}, not {USER}"
        template = "{{json .Config.Labels}}"
        labels = json.loads(engine.run("image", "inspect", "--format", template, image))
        labelled = labels["org.opencontainers.image.version"]
        assert labelled == version, f"{image}: labelled {labelled}; the project is {version}"
        assert labels.get("org.opencontainers.image.base.name"), f"{image}: {labels}"
        search = "for name in pip gcc strip curl; do command -v $name; done; true"
        shell = ("run", "--rm", *HARDENED, "--entrypoint", "sh", image, "-c")
        assert not (tools := engine.run(*shell, search)), f"{image} has {tools}"
        sizes.append(size(engine, image))
    return ", ".join(sizes)


def size(engine: Engine, image: str) -> str:
    """The image with its size, uncompressed."""
    bytes_ = int(engine.run("image", "inspect", "--format", "{{.Size}}", image))
    return f"{image} {bytes_ / 1e6:.0f} MB"
