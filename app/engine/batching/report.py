"""The report that the batcher makes of each batch."""

from dataclasses import dataclass


@dataclass(slots=True)
class BatchReport:
    """What one batch contained, and how long it took."""

    texts: int  # number of rows; equal texts share one
    tokens: int
    padded_tokens: int  # texts × longest
    max_tokens: int  # the budget, in padded tokens
    inference_seconds: float
    failed: int  # number of texts that failed
    others_waited: bool  # whether other texts waited when the batch was done
    tags: tuple[object, ...] = ()  # of the requests in the batch
    shared: int = 0  # number of texts that got the result of an equal text's row
    retried: bool = False  # whether it was computed again in parts, after an error
    out_of_memory: bool = False  # whether memory ran out
