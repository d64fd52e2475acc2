"""What is known of each worker process of the service: its part of the board's status section."""

from enum import IntEnum

from sentiment_service.shared_memory.board import Board

_NUMBERS = 10  # of the section, which WorkerStatus names


class WorkerPhase(IntEnum):
    """What a worker is doing. The ranks of the phases, too: connections go to the lowest first."""

    READY = 1
    NOT_READY = 2  # it answers, but inference fails
    STOPPING = 3
    STARTING = 4
    HOPELESS = 5  # only a new process can help
    ENDED = 6


class _Number:
    """A whole number of the status section, at its place in the class."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, status: "WorkerStatus", owner: type) -> int:
        return int(status.numbers[self._index])

    def __set__(self, status: "WorkerStatus", value: int) -> None:
        status.numbers[self._index] = value


class WorkerStatus:
    """The status of worker ``number``. The comments say who writes each number."""

    pid = _Number(0)  # supervisor; 0 if there is no process
    restarts = _Number(1)  # supervisor: how often a new process took the place of an ended one
    dealt = _Number(2)  # supervisor: connections that this process has been given
    closed = _Number(3)  # worker: those of them that have ended
    phase_number = _Number(4)  # worker, but the supervisor while there is no process
    beats = _Number(5)  # worker: grows while its event loop runs
    connections = _Number(6)  # worker: open now
    in_flight = _Number(7)  # worker: requests being answered
    answered = _Number(8)  # worker: requests answered since its start
    models = _Number(9)  # worker: a digest of the models that it serves

    def __init__(self, board: Board, number: int) -> None:
        self.number = number
        self.numbers = board.section("status", number).cast("d")

    @property
    def phase(self) -> WorkerPhase:
        """What the worker is doing."""
        return WorkerPhase(self.phase_number or WorkerPhase.STARTING)

    @property
    def open(self) -> int:
        """Connections that were dealt to the worker and have not ended."""
        return self.dealt - self.closed

    def begin(self, pid: int) -> None:
        """A new process begins."""
        for index in range(2, _NUMBERS):
            self.numbers[index] = 0
        self.phase_number, self.pid = WorkerPhase.STARTING, pid

    def end(self) -> None:
        """The process has ended."""
        self.phase_number, self.pid = WorkerPhase.ENDED, 0


def statuses(board: Board) -> list[WorkerStatus]:
    """The status of each worker of the service."""
    return [WorkerStatus(board, number) for number in range(board.workers)]
