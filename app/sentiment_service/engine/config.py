"""What the engine must be told. ``Settings.engine_config`` makes it of the service's settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How models are loaded, tuned and served.

    The fields are named like the settings that they come from. For numbers, 0 means: measured at
    the start, or no limit.
    """

    served_name: Sequence[str]  # in the places of the bundles' own names
    device: str  # as ``Device.of`` reads it, or auto
    precision: Literal["auto", "fp32", "fp16", "int8"]
    gpu_memory_mb: int
    runners: int
    threads: int
    max_batch_tokens: int
    max_queue_tokens: int
    target_latency_ms: int
    cache_mb: int  # for the results of each model's latest texts; 0: none are kept
    max_text_chars: int
    workers: int  # processes, which share the memory
    gpu_workers: int  # of them, those that share a GPU with this one, itself included
    cache_dir: Path | None  # what is measured is kept there
    retire_ms: int  # a replaced model gets this long to finish its requests
