"""The memory that the workers of a service share, for tests that are several workers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sentiment_service.shared_memory import Board


@contextmanager
def shared_board(workers: int) -> Iterator[tuple[Board, int]]:
    """The supervisor's board, and the file descriptor that ``Board.open`` takes."""
    board, descriptor = Board.create(workers)
    try:
        yield board, descriptor
    finally:
        os.close(descriptor)


def boards(workers: int) -> list[Board]:
    """The board as each worker sees it."""
    with shared_board(workers) as (_, descriptor):
        return [Board.open(descriptor, workers, number) for number in range(workers)]
