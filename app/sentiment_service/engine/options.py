"""How models are loaded and served, and how texts are processed.

Nothing here needs a tokenizer or ONNX Runtime, so that reading settings or a manifest is quick.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How models are loaded, tuned and served, in the words of the settings.

    For numbers, 0 means: measured at the start, or no limit.
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
    shadow: Path | None  # the bundle of a candidate that is tried beside the first model
    shadow_share: float  # of the answered texts that it gets, too


# What a bundle does to its texts before it tokenises them.
Preprocessing = Literal["tweet", "bertweet", "tweet_topic", "robertuito", "none"]
Overflow = Literal["truncate", "error", "window"]
Split = Literal["sentences"]


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How to process a text.

    ``language`` is a BCP 47 tag; None: it is not known. It decides which abbreviations end no
    sentence; English ones where it is not known. ``threshold``, for multi-label models, is the
    score from which on a text has a label; None: that of the bundle.
    """

    overflow: Overflow = "truncate"
    split: Split | None = None
    language: str | None = None
    threshold: float | None = None


DEFAULTS = TextOptions()


# BCP 47. No language has more letters in its tag; "english" is a mistake.
LANGUAGE_TAG = re.compile("[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8}){0,3}")


def wider(language: str) -> list[str]:
    """A BCP 47 tag in lower case, and those of the same language that say less, down to one word.

    ``zh-Hant-TW`` becomes zh-hant-tw, zh-hant and zh.
    """
    words = language.lower().split("-")
    return ["-".join(words[:count]) for count in range(len(words), 0, -1)]
