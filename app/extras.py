"""Which extra of this package has an optional package, for the error when it is missing."""

import shlex
import sys

from app.errors import UserError

# By the module's first name. For the runtime, the extra `gpu` does as well.
EXTRAS = {
    "onnxruntime": "cpu",
    "httpx": "files",
    "pyarrow": "files",
    "opentelemetry": "otel",
    "grpc": "grpc",
    "ray": "ray",
    "huggingface_hub": "hub",
    "requests": "hub",
    **dict.fromkeys(
        (
            "google",
            "onnx",
            "onnx_ir",
            "optimum",
            "safetensors",
            "sentencepiece",
            "torch",
            "tqdm",
            "transformers",
        ),
        "export",
    ),
}


def missing_extra(error: ModuleNotFoundError) -> UserError:
    """An error that says which commands install the extra for this interpreter."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return UserError(f"the installation is not complete: {error}")
    extra = EXTRAS[module]
    instead = " (or 'gpu', for CUDA)" if extra == "cpu" else ""
    return UserError(
        f"this needs the package {module}, which the extra '{extra}'{instead} installs: run "
        f"{install_commands(extra)}"
    )


def install_commands(extra: str) -> str:
    """The shell commands that add the extra to this interpreter's packages.

    For the exporter, they install PyTorch for CPUs. On Linux, pip would install that for CUDA,
    which is ten times as large.
    """
    python = shlex.quote(sys.executable)
    package = f"'sentiment-service[{extra}]'"
    if extra != "export":
        return f"{python} -m pip install {package}"
    torch_for_cpus = f"-m uv pip install --python {python} --torch-backend cpu"
    return f"{python} -m pip install uv && {python} {torch_for_cpus} {package}"
