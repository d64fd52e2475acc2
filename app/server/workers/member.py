"""A worker's side of what the workers of a service do together: reload models, and end."""

import asyncio
import logging
import socket
import uuid
from collections.abc import Callable
from typing import Any

from app.engine.model_registry import ModelRegistry
from app.errors import InvalidBundle, NotReady, OutOfMemory, ServiceError, ShuttingDown
from app.server.workers.control import Control

# The errors of reloads, by their codes.
ERRORS = {error.code: error for error in (InvalidBundle, NotReady, OutOfMemory)}

logger = logging.getLogger(__name__)


class Member:
    """Listens to the supervisor on the Unix socket ``control``. Create it on the event loop.

    ``hang_up`` is called when all models are to be loaded again, and ``stop`` when the supervisor
    has ended.
    """

    def __init__(
        self,
        control: socket.socket,
        models: ModelRegistry,
        *,
        hang_up: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        self._models = models
        self._hang_up = hang_up
        self._asked: dict[str, asyncio.Future[list[str] | None]] = {}
        # By the number of a reload: whether to switch to the new model, once that is decided.
        self._decisions: dict[int, asyncio.Future[bool]] = {}
        self._preparing: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._control = Control(control, self._told, stop)

    async def reload(self, name: str) -> None:
        """Have all workers load the named model's bundle again.

        Raises:
            ModelNotFound, NotReady, ShuttingDown: there is no such model to reload now.
            InvalidBundle: a worker cannot serve the bundle's present content; the old model stays
                at all of them.
            OutOfMemory: a worker has no memory for both models; the old model stays likewise.
        """
        self._models.classifier(name)  # raises for an unknown name
        if self._stopping:
            raise ShuttingDown()
        # Unique, because the answer may reach the next worker of this number.
        request = uuid.uuid4().hex
        self._asked[request] = asked = asyncio.get_running_loop().create_future()
        self._control.send(kind="reload", model=name, request=request)
        try:
            fault = await asked
        finally:
            del self._asked[request]
        if fault is not None:
            raise ERRORS.get(fault[0], NotReady)(fault[1])

    def stop(self) -> None:
        """Give up reloads: the service stops."""
        self._stopping = True
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ShuttingDown())
        for decision in self._decisions.values():
            if not decision.done():
                decision.set_result(False)

    def _told(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "hangup":
            self._hang_up()
        elif kind == "reloaded":
            asked = self._asked.get(message["request"])
            if asked is not None and not asked.done():
                asked.set_result(message["error"])
        elif kind == "prepare":
            task = asyncio.create_task(self._prepare(message["model"], message["reload"]))
            self._preparing.add(task)
            task.add_done_callback(self._preparing.discard)
        else:
            decision = self._decisions.get(message["reload"])
            if decision is not None and not decision.done():
                decision.set_result(kind == "switch")

    async def _prepare(self, name: str, number: int) -> None:
        """Load the model, say so, and do then what is decided. Each step that fails is answered."""
        self._decisions[number] = decision = asyncio.get_running_loop().create_future()
        try:
            await self._models.prepare(name)
            self._answer(number, None)
            if self._stopping and not decision.done():
                decision.set_result(False)
            if await decision:
                await self._models.switch(name)
                self._answer(number, None)
            else:
                self._models.drop(name)
        except ServiceError as error:
            self._answer(number, [error.code, error.detail])
        except Exception:
            logger.exception("%s could not be reloaded", name)
            self._answer(number, [NotReady.code, "a worker failed; the service's log says why"])
        finally:
            del self._decisions[number]

    def _answer(self, number: int, fault: list[str] | None) -> None:
        self._control.send(kind="done", reload=number, error=fault)
