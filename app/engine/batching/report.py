"""The report that the batcher makes of each batch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch contained, and how long it took."""

    texts: int
    tokens: int
    padded_tokens: int  # texts × longest
    max_tokens: int  # the budget, in padded tokens
    inference_seconds: float
    failed: int  # number of texts that failed
    others_waited: bool  # whether other texts waited when the batch was done
    tags: tuple[object, ...] = ()  # of the requests in the batch
