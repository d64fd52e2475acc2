"""What every step gets: where to compute, with which models, and how much."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Device = Literal["cuda", "cpu"]
SizeName = Literal["base", "tiny"]


@dataclass(frozen=True)
class Size:
    """How much is measured, with a RoBERTa of this config."""

    name: str
    config: Mapping[str, Any]
    tokens: tuple[int, ...] = (8, 32, 128, 512)  # of a text
    batches: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 2048, 8192)  # texts in a batch
    batch_tokens: int = 65_536  # at most
    cell_seconds: float = 0.25  # for each length and batch size
    independence_texts: int = 2_000
    parity_texts: int = 100
    new_shapes: int = 2_000
    new_shape_tokens: int = 16_384  # in a batch at most
    service_texts: int = 16_384
    request_texts: tuple[int, ...] = (1, 16, 64)
    workers: tuple[int, ...] = (1, 2, 4, 8)
    connections: int = 64  # of each client; there are as many clients as workers
    load_seconds: float = 4.0
    starts: int = 3  # the first of them without a cache
    reloads: int = 6


BASE = Size("RoBERTa-base", {"vocab_size": 50_265})
_SMALL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
}
# To try the steps where there is no GPU; the figures say nothing.
TINY = Size(
    "tiny",
    _SMALL,
    tokens=(8, 16),
    batches=(1, 4, 64),
    batch_tokens=64,
    cell_seconds=0.01,
    independence_texts=60,
    parity_texts=8,
    new_shapes=50,
    new_shape_tokens=64,
    service_texts=64,
    request_texts=(1, 4),
    workers=(1, 2),
    connections=2,
    load_seconds=0.3,
    starts=2,
    reloads=2,
)
SIZES: dict[SizeName, Size] = {"base": BASE, "tiny": TINY}


@dataclass(frozen=True)
class Setup:
    """One run of the check. Its bundles are in ``work`` and are made once."""

    work: Path
    device: Device
    size: Size = field(default=BASE)

    @property
    def bundle(self) -> Path:
        return self.work / f"{self.size.name}-bundle"

    @property
    def others(self) -> Path:
        """The bundle with fp32, and with the fp16 graph that keeps padding."""
        return self.work / f"{self.size.name}-others-bundle"

    @property
    def bundles(self) -> list[Path]:
        """Both, of which tests may have one."""
        return [path for path in (self.bundle, self.others) if path.exists()]
