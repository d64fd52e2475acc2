"""Which extra of this package has an optional package, for the error when it is missing."""

from app.errors import UserError

# By the module's first name. For the runtime, the extra `gpu` does as well.
EXTRAS = {
    "onnxruntime": "cpu",
    "httpx": "files",
    "pyarrow": "files",
    "opentelemetry": "otel",
    "grpc": "grpc",
    "ray": "ray",
    **dict.fromkeys(
        (
            "google",
            "huggingface_hub",
            "onnx",
            "onnx_ir",
            "optimum",
            "requests",
            "safetensors",
            "scipy",
            "sentencepiece",
            "sklearn",
            "torch",
            "tqdm",
            "transformers",
        ),
        "export",
    ),
}


def missing_extra(error: ModuleNotFoundError) -> UserError:
    """An error that says which extra to install."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return UserError(f"the installation is not complete: {error}")
    extra = EXTRAS[module]
    instead = " (or 'gpu', for CUDA)" if extra == "cpu" else ""
    return UserError(
        f"this needs the package {module}, which the extra '{extra}'{instead} installs: in a "
        f"clone, run pip install '.[{extra}]'"
    )
