"""``sentiment doctor``: what it finds, and what it says that helps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from sentiment_service.cli import doctor
from sentiment_service.cli.command import main
from sentiment_service.engine import loading
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import MANIFEST, sha256
from sentiment_service.engine.model.device import CPU, CUDA, CudaGpu, CudaState, Device
from sentiment_service.engine.model.model import Model
from sentiment_service.errors import UserError

WORKING = CudaState("580.65.06", "13.0", "13.0", (CudaGpu("NVIDIA Test", 80 * 2**30, (9, 0)),))
BROKEN = CudaState(problem="no NVIDIA driver is found", cure="install the driver")

Lines = list[str]


@pytest.fixture
def ask(bundle: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Lines]]:
    """Run the command with the tiny model; returns the exit code and the lines."""

    def run(*flags: str) -> tuple[int, Lines]:
        code = main(["doctor", "--model", str(bundle), *flags])
        return code, capsys.readouterr().out.splitlines()

    return run


def load_with(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Model]) -> None:
    """Let ``load`` take the place of ``load_model``."""
    for module in (doctor, loading):
        monkeypatch.setattr(module, "load_model", load)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install the package for GPUs, with this state of CUDA and this error of its logits."""

    def install(state: CudaState, error: float = 0.0) -> None:
        monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, CPU])
        monkeypatch.setattr(doctor, "cuda_state", lambda: state)
        load = load_model
        infer: Any = Model.infer

        def on_gpu(bundle: Any, *, device: str, **options: Any) -> Model:
            model = load(bundle, device="cpu", **options)
            model.provider = CPU if device == "cpu" or state.problem else CUDA
            return model

        def with_error(model: Model, encodings: Any) -> Any:
            shift = error * (model.provider == CUDA) * np.array([1, 0, -1], np.float32)
            return [row + shift for row in infer(model, encodings)]

        load_with(monkeypatch, on_gpu)
        monkeypatch.setattr(Model, "infer", with_error)

    return install


Ask = Callable[..., tuple[int, Lines]]


def test_a_healthy_cpu_installation_is_ok(ask: Ask, bundle: Path) -> None:
    """One line for each check; a missing GPU package is no problem."""
    code, lines = ask()
    assert code == 0
    assert [line.split(":")[0].split() for line in lines] == [
        ["ok", name] for name in ("versions", "runtime", "CPU", "GPU", "model")
    ]
    assert "no GPU package is installed; serving on the CPU" in lines[3]
    digest = sha256(bundle / MANIFEST)[:12]
    assert f"tiny (digest {digest}) in fp32 on CPUExecutionProvider, loaded in " in lines[4]


def test_a_gpu_that_was_asked_for_and_is_not_there_is_a_problem(
    ask: Ask, gpu: Callable[..., None]
) -> None:
    """With the package for GPUs, the line names the cause and the cure, unless the CPU is asked."""
    gpu(BROKEN)
    code, lines = ask()
    assert code == 1
    assert lines[3] == "PROBLEM  GPU: no NVIDIA driver is found; install the driver"
    code, lines = ask("--device", "cpu")
    assert (code, lines[3]) == (0, "ok       GPU: not used, because the device is cpu")


@pytest.mark.parametrize(
    ("error", "begin", "end"),
    [
        (0.0, "ok       parity: logits differ from fp32 on the CPU by up to 0 ", ""),
        (
            2.0,
            "PROBLEM  parity: logits differ from fp32 on the CPU by up to 2 ",
            "serve with --precision fp32, and report this",
        ),
    ],
)
def test_a_gpu_is_compared_with_the_cpu(
    ask: Ask, gpu: Callable[..., None], error: float, begin: str, end: str
) -> None:
    """Driver and GPU are named; a difference above the tolerance is said, with what helps."""
    gpu(WORKING, error)
    code, lines = ask()
    assert code == (1 if error else 0)
    assert "NVIDIA Test, 80 GiB, compute capability 9.0; driver 580.65.06 for CUDA 13.0" in lines[3]
    assert lines[5].startswith(begin)
    assert lines[5].endswith(end)


def test_each_gpu_is_compared_with_the_cpu(
    ask: Ask, gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong logits of only the second GPU are a problem."""
    gpu(WORKING)
    load: Any = vars(doctor)["load_model"]
    infer: Any = Model.infer
    batches = []

    def on_two_gpus(bundle: Any, *, device: str, **options: Any) -> Model:
        model: Model = load(bundle, device=device, **options)
        if device != "cpu":
            model.device = Device((0, 1))
        return model

    def wrong_on_the_second(model: Model, encodings: Any) -> Any:
        batches.append(len(encodings))
        return [row + (len(batches) == 2) for row in infer(model, encodings)]

    load_with(monkeypatch, on_two_gpus)
    monkeypatch.setattr(Model, "infer", wrong_on_the_second)
    code, lines = ask()
    assert code == 1
    assert lines[5].startswith("PROBLEM  parity: logits differ from fp32 on the CPU by up to 1 ")


def test_a_comparison_that_fails_is_a_problem(
    ask: Ask, gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the CPU cannot compute the logits, the other findings are still written."""
    gpu(WORKING)
    load: Callable[..., Model] = vars(doctor)["load_model"]

    def not_on_cpu(bundle: Any, *, device: str, **options: Any) -> Model:
        if device == "cpu":
            raise UserError("model.onnx is damaged")
        return load(bundle, device=device, **options)

    load_with(monkeypatch, not_on_cpu)
    code, lines = ask()
    assert code == 1
    assert len(lines) == 6
    assert [line for line in lines if not line.startswith("ok")] == [lines[5]]
    assert lines[5] == "PROBLEM  parity: model.onnx is damaged"


def test_a_bundle_that_cannot_be_served_is_a_problem(
    ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line is the error of ``serve``, and the other checks were made."""
    assert main(["doctor", "--model", str(tmp_path / "none")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[4].startswith("PROBLEM  model: ")
    assert str(tmp_path / "none") in lines[4]


@pytest.mark.parametrize("beside", [True, False])
def test_two_runtimes_in_one_place_are_a_problem(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, beside: bool
) -> None:
    """Both packages write the same files, so what works depends on their order.

    One that lies elsewhere on Python's path, as with ``pip install --target``, is not used.
    """
    for name in ("onnxruntime", "onnxruntime_gpu"):
        information = tmp_path / f"{name}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    if beside:
        monkeypatch.setattr(ort, "__file__", str(tmp_path / "onnxruntime/__init__.py"))
    code, lines = ask()
    assert code == int(beside)
    if beside:
        assert lines[1].startswith("PROBLEM  runtime: onnxruntime 1.0 and onnxruntime-gpu 1.0")
    else:
        assert "1.0 and" not in lines[1]
