"""What the batcher tells of its batches."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch was and took."""

    texts: int
    tokens: int
    padded_tokens: int  # texts × longest
    max_tokens: int  # the budget, in padded tokens
    inference_seconds: float
    failed: int  # texts
    others_waited: bool  # when it was done
    tags: tuple[object, ...] = ()  # those of the requests
