"""What the supervisor tells a worker process when it starts it: by an environment variable."""

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from app.config.settings import Settings
from app.shared_memory.board import Board

VARIABLE = "_SENTIMENT_WORKER"


@dataclass(frozen=True)
class Assignment:
    """The number of a worker, and the models and file descriptors that it has been given."""

    number: int  # from 0
    workers: int  # of the service
    board: int
    control: int  # a Unix socket for messages from and to the supervisor
    sites: list[int]  # a Unix socket for the connections of each port
    # Paths of bundles. A checkpoint may have changed since the supervisor exported it, and then
    # this worker would serve another model than the others.
    models: list[str]
    cache: str  # the directory for caches; "" for the usual one

    @classmethod
    def of_this_process(cls) -> Self | None:
        """What the supervisor has told this process; None if no supervisor has started it."""
        told = os.environ.pop(VARIABLE, None)
        return cls(**json.loads(told)) if told else None

    def applied_to(self, settings: Settings) -> Settings:
        """The settings with what the supervisor has found out once for all workers."""
        cache = Path(self.cache) if self.cache else settings.cache_dir
        models = tuple(map(Path, self.models))
        return settings.model_copy(update={"model": models, "cache_dir": cache})

    def environment(self) -> dict[str, str]:
        """The environment of the worker."""
        return {**os.environ, VARIABLE: json.dumps(asdict(self))}

    def descriptors(self) -> list[int]:
        """What the worker inherits."""
        return [self.board, self.control, *self.sites]

    def open_board(self) -> Board:
        """The board of the service."""
        return Board.open(self.board, self.workers, self.number)

    def open_sites(self) -> list[socket.socket]:
        """The sockets from which the connections of each port come."""
        return [socket.socket(fileno=site) for site in self.sites]
