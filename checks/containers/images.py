"""The images: what they are built from, and what is in them."""

import json
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path

from benchmarks.service import ROOT
from checks.containers.engine import HARDENED, Engine, EngineError
from checks.support import debian

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


def base_image(engine: Engine) -> str:
    """The Dockerfile's base image, or a stand-in where it is out of reach."""
    (image,) = re.findall(r"^ARG BASE_IMAGE=(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    if engine.has_image(image):
        return str(image)
    if not engine.has_image(STAND_IN):
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "debian.tar"
            try:
                debian.make("bookworm", archive)
            except FileNotFoundError:
                raise EngineError(f"{image} is out of reach, and mmdebstrap is not here") from None
            except subprocess.CalledProcessError as error:
                raise EngineError(f"{image} is out of reach; {error.stderr[-300:]}") from None
            engine.run("import", archive, STAND_IN)
    return STAND_IN


def build(base: str, target: str, engine: Engine) -> str:
    """Build a target of the Dockerfile; its base image."""
    _build(engine, base, f"sentiment-service:{target}", "--target", target, str(ROOT))
    return f"base image {base}"


def build_tools(base: str, engine: Engine) -> str:
    """Build the image with Debian's Prometheus and nginx."""
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
            mounts = [*debian.pip_sources(Path(pip.name))]
            if Path("/etc/apt").is_dir():
                mounts.append(("/etc/apt", "/etc/apt"))
            options += [f"--volume={here}:{there}:ro" for here, there in mounts]
        engine.run("build", *options, *arguments, seconds=BUILD_S)


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
    bytes_ = int(engine.run("image", "inspect", "--format", "{{.Size}}", image))
    return f"{image} {bytes_ / 1e6:.0f} MB"
