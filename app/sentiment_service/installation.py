"""This installation: the extra that has a missing package, and how its commands are started."""

import importlib.metadata
import json
import shlex
import sys
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sentiment_service.errors import UserError

# By the module's first name. For the runtime, the extra `gpu` does as well.
EXTRAS = {
    "onnxruntime": "cpu",
    "httpx": "files",
    "pyarrow": "files",
    "openpyxl": "files",
    "opentelemetry": "otel",
    "grpc": "grpc",
    "pyspark": "spark",
    "huggingface_hub": "hub",
    "matplotlib": "pictures",
    **dict.fromkeys(("google", "onnx", "sentencepiece", "tqdm"), "export"),
    **dict.fromkeys(
        ("onnx_ir", "onnxscript", "optimum", "safetensors", "torch", "transformers"), "torch"
    ),
}
# Where the Dockerfile installs this package. The images have no pip.
IMAGE = "/opt/sentiment"
EXPORT_COMMAND = (
    "docker run --rm -v models:/models sentiment-service:export SOURCE --output /models/NAME"
)


def missing_extra(error: ModuleNotFoundError) -> UserError:
    """An error that says which extra to install, or in an image, what to use instead."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return UserError(f"the installation is not complete: {error}")
    extra = EXTRAS[module]
    if sys.prefix == IMAGE:
        use = f"run {EXPORT_COMMAND}" if extra == "torch" else "use the service without an image"
        return UserError(f"this needs the package {module}, which is not in this image: {use}")
    instead = " (or 'gpu', for CUDA)" if extra == "cpu" else ""
    # A repository of the hub holds a bundle or, more often, a checkpoint.
    whole = f"; to export checkpoints, too, run {install_command('export')}"
    return UserError(
        f"this needs the package {module}, which the extra '{extra}'{instead} installs: run "
        f"{install_command(extra)}{whole if extra == 'hub' else ''}"
    )


def install_command(extra: str) -> str:
    """The shell command that adds an extra to the environment of the running Python.

    It installs this package again from where pip got it: a clone, a wheel or a repository.
    PyTorch comes for CPUs: on Linux, pip would choose that for CUDA, which is ten times as large.
    """
    # pip records the source (PEP 610), unless it was an index.
    recorded = importlib.metadata.distribution("sentiment-service").read_text("direct_url.json")
    source = json.loads(recorded) if recorded else {}
    words = [f"sentiment-service[{extra}]"]
    if source.get("dir_info", {}).get("editable"):
        words = ["--editable", f"{url2pathname(urlsplit(source['url']).path)}[{extra}]"]
    elif vcs := source.get("vcs_info"):
        words = [f"{words[0]} @ {vcs['vcs']}+{source['url']}@{vcs['commit_id']}"]
    elif source:
        words = [f"{words[0]} @ {source['url']}"]
    pip = [sys.executable, "-m", "pip", "install"]
    if extra != "torch":
        return shlex.join([*pip, *words])
    uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
    return f"{shlex.join([*pip, 'uv'])} && {shlex.join([*uv, '--torch-backend', 'cpu', *words])}"


# Option 1 of prctl is PR_SET_PDEATHSIG.
_CODE = """
import ctypes, signal, sys
sys.platform == "linux" and ctypes.CDLL(None).prctl(1, signal.SIGKILL)
{}
sys.exit(main())
"""


def child_command(imports_main: str) -> tuple[str, ...]:
    """The command that runs the ``main`` that this Python imports."""
    return (sys.executable, "-c", _CODE.format(imports_main))
