"""Ctrl-C in the midst of a training."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch


@contextmanager
def interrupted_in_step(step: int) -> Iterator[None]:
    """What is trained in this context is interrupted in this step, counted from 1."""
    clip, steps = torch.nn.utils.clip_grad_norm_, iter(range(1, step + 1))

    def clip_or_stop(*arguments: Any, **keywords: Any) -> object:
        if next(steps) == step:
            raise KeyboardInterrupt
        return clip(*arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", clip_or_stop)
        with pytest.raises(KeyboardInterrupt):
            yield
