"""What cuda-check counts as a fault, of what a provider did with a graph."""

import dataclasses
from typing import Any

import onnxruntime as ort
import pytest
from sentiment_service.engine.machine import gpu

from checks.cuda.__main__ import Seen, faults
from checks.cuda.facts import wrong

# As ONNX Runtime writes it, of a flat graph with one layer.
LOG = """
All nodes placed on [CUDAExecutionProvider]. Number of nodes: 13
Operator=PackedMultiHeadAttention DataType=fp16 SdpaKernel=FLASH_ATTENTION
"""
ON_CPU = """
Node(s) placed on [CPUExecutionProvider]. Number of nodes: 8
Node(s) placed on [CUDAExecutionProvider]. Number of nodes: 5
"""
FIGURES = {
    "events": "hhkpkpkdss",
    "coarse": 0,
    "not_taken": [],
    "grown": 0,
    "out_of_memory": "OutOfMemory",
    "illegal_address": "DeviceLost",
}


def test_a_sound_graph_has_no_faults() -> None:
    """All on the GPU, flash attention, one wait at the end, steady memory, known errors."""
    assert faults("roberta", "fp16", Seen(LOG, FIGURES)) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"events": "hkps" + "kp" * 3 + "dss"}, "waits for the GPU in the middle"),
        ({"events": "hkpd" + "kp" * 3 + "dss"}, "waits for the GPU in the middle"),
        ({"events": "k" * 131 + "dss"}, "131 kernels, more than 130"),
        ({"not_taken": ["use_tf32"]}, "takes no option use_tf32"),
        ({"coarse": 1}, "products that are not added up in fp32"),
        ({"grown": 4096}, "memory grew by 4096 bytes"),
        ({"out_of_memory": "NoneType"}, "no memory ends in NoneType"),
        ({"illegal_address": "none"}, "error 700 ends in none"),
    ],
)
def test_each_figure_may_be_wrong(change: dict[str, Any], expected: str) -> None:
    """One fault each, which says what was seen."""
    assert faults("roberta", "fp16", Seen(LOG, FIGURES | change)) == [expected]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (LOG + "12 Memcpy nodes are added to the graph", "12 Memcpy nodes, not 0"),
        (LOG + ON_CPU, "8 nodes on the CPU"),
        (LOG + "SdpaKernel=MATH", "attention by FLASH_ATTENTION, MATH"),
        (LOG.replace("Sdpa", ""), "attention by nothing"),
    ],
)
def test_each_line_of_the_log_may_be_wrong(log: str, expected: str) -> None:
    """Copies, nodes on the CPU, and another kernel than flash attention for any batch."""
    assert faults("roberta", "fp16", Seen(log, FIGURES)) == [expected]


def test_padded_graphs_may_do_arithmetic_of_shapes_on_the_cpu() -> None:
    """They have more kernels and no fused attention, and must not wait or grow either."""
    padded = Seen(ON_CPU, FIGURES | {"events": "k" * 400 + "dss"})
    assert faults("mpnet", "fp16", padded) == []
    assert faults(
        "mpnet", "fp16", dataclasses.replace(padded, log=ON_CPU + "1 Memcpy nodes are added")
    ) == ["1 Memcpy nodes, not 0"]


def test_in_fp32_the_tokens_are_counted_before_all_else() -> None:
    """Their numbers are copied to the GPU; nothing waits for it, also in BERT's family."""
    plain = Seen(
        ON_CPU + "3 Memcpy nodes are added", FIGURES | {"events": "hhh" + "k" * 400 + "dss"}
    )
    assert faults("roberta", "fp32", plain) == []
    waiting = dataclasses.replace(plain, figures=FIGURES | {"events": "hkds" + "k" * 400 + "dss"})
    assert faults("roberta", "fp32", waiting) == ["waits for the GPU in the middle"]


WHEEL = {"version": ort.__version__, "CUDA": "13.0", "machine code": "", "PTX": "none"}
WHEEL["machine code"] = ", ".join(
    f"{major}.{minor}" for major, minor in gpu.MACHINE_CODE[ort.__version__.rpartition(".")[0]]
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"CUDA": "14.1"}, ["the wheel is built for CUDA 14.1, not 13"]),
        (
            {"version": "1.99.0"},
            ["engine/machine/gpu.py names machine code for nothing"],
        ),
        ({"PTX": "12.0"}, ["the wheel has PTX for 12.0, which newer GPUs can run"]),
    ],
)
def test_a_wheel_that_is_not_as_the_service_takes_it(
    change: dict[str, str], expected: list[str]
) -> None:
    """One fault each: another CUDA, a version whose GPUs are not known, code for other GPUs."""
    assert list(wrong(WHEEL | change)) == expected
