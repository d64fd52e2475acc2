"""Reloads of the served bundle: as it is, with another calibration, and damaged."""

import asyncio
import json
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from checks.soak.faults.deaths import clients_of
from checks.soak.faults.outcomes import DONE, WRONG, Fault
from checks.soak.traffic import Traffic
from checks.soak.wire import ADMIN_KEY, Connection, request

READY_S = 60.0  # after this time, a worker that does not serve what it should counts as lost
LOOK_S = 0.2
MOST_CONNECTIONS = 200
SHOWN = (b"sentiment_model_info{", b"sentiment_model_ready{")
Act = Callable[[], Awaitable[str]]


class Reloads:
    """Has the process ``pid`` load its bundle again, and changes the bundle."""

    def __init__(self, traffic: Traffic, pid: int, order: random.Random) -> None:
        self._traffic = traffic
        self._pid = pid
        self._bundle = traffic.calls.truth.model.path
        self._order = order
        self._path = f"/models/{traffic.calls.name}/reload"
        self._one_at_a_time = asyncio.Lock()

    def faults(self) -> dict[str, Fault]:
        """What happens to a service, with workers or not."""
        http, sighup = self.by_http, self.by_sighup
        return {
            "reload by HTTP": Fault(1, self.alone(http), {"200"}),
            "reload by SIGHUP": Fault(1, sighup, {DONE}),
            "two SIGHUPs in a row": Fault(0.5, self._two_hangups, {DONE}),
            "recalibration, loaded by HTTP": Fault(0.5, self.recalibration(http), {DONE}),
            "recalibration, loaded by SIGHUP": Fault(0.5, self.recalibration(sighup), {DONE}),
            "reload of a damaged bundle": Fault(1, self.alone(self._damaged), {"invalid_bundle"}),
        }

    def alone(self, act: Act) -> Act:
        """The same, while nothing else changes the bundle, or needs it as it is."""

        async def inflict() -> str:
            async with self._one_at_a_time:
                return await act()

        return inflict

    def recalibration(self, load: Act) -> Act:
        """Write another temperature into the manifest; after ``load``, all processes serve it."""
        return self.alone(partial(self._recalibrate, load))

    async def by_http(self) -> str:
        """Ask for it with an admin key; the status, or the code of a refusal with 422."""
        sent = request("POST", self._path, authorization=f"Bearer {ADMIN_KEY}")
        async with await Connection.open(self._traffic.port) as connection:
            answer = await connection.ask(sent)
        return str(json.loads(answer.body)["code"] if answer.status == 422 else answer.status)

    async def by_sighup(self) -> str:
        """Send the signal, which has no answer."""
        os.kill(self._pid, signal.SIGHUP)
        return DONE

    async def _two_hangups(self) -> str:
        await self.by_sighup()
        await asyncio.sleep(self._order.uniform(0, 0.5))
        return await self.by_sighup()

    async def _recalibrate(self, load: Act) -> str:
        truth, manifest = self._traffic.calls.truth, self._bundle / "manifest.json"
        content = json.loads(manifest.read_bytes())
        wanted = content["variants"]["int8"]["calibration"]["temperature"] = truth.recalibrate()
        _replace(manifest, json.dumps(content).encode())
        if (seen := await load()) not in {"200", DONE}:
            return seen
        async with asyncio.timeout(READY_S):
            while True:
                if await self._temperatures() == {wanted}:
                    truth.switched()
                    return DONE
                await asyncio.sleep(LOOK_S)

    async def _temperatures(self) -> set[float]:
        """What each process serves; nothing if one gets no connection.

        Each connection goes to the process that has the fewest.
        """
        seen: dict[int, float] = {}
        async with AsyncExitStack() as stack:
            for _ in range(MOST_CONNECTIONS):
                connection = await Connection.open(self._traffic.port)
                await stack.enter_async_context(connection)
                info = json.loads((await connection.ask(request("GET", "/info"))).body)
                pids = {worker["pid"] for worker in info["workers"]}
                for pid in pids:  # of none, if the worker has ended the connection with its answer
                    if connection.client in clients_of(pid, self._traffic.port):
                        seen[pid] = info["calibration"]["temperature"]
                if seen.keys() >= pids:
                    return set(seen.values())
        return set()

    async def _damaged(self) -> str:
        """Ask for it, and restore the bundle. The refused model must not show in the metrics."""
        name, damage = self._order.choice(DAMAGES)
        file, before = self._bundle / name, await self._shown()
        content = file.read_bytes()
        _replace(file, damage(content))
        try:
            outcome = await self.by_http()
            return outcome if await self._shown() == before else WRONG
        finally:
            _replace(file, content)

    async def _shown(self) -> list[bytes]:
        """The models that the metrics name."""
        async with await Connection.open(self._traffic.port) as connection:
            answer = await connection.ask(request("GET", "/metrics"))
        return [line for line in answer.body.splitlines() if line.startswith(SHOWN)]


def _replace(file: Path, content: bytes) -> None:
    """At once: nobody reads half of it, and who has opened the old file keeps it."""
    new = file.with_suffix(".new")
    new.write_bytes(content)
    new.replace(file)


def _other_revision(manifest: bytes) -> bytes:
    """A manifest of a model that is not there."""
    content = json.loads(manifest)
    content["source"]["revision"] = "refused"
    content["variants"]["int8"]["sha256"] = "0" * 64
    return json.dumps(content).encode()


DAMAGES: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("manifest.json", lambda content: content[: len(content) // 2]),
    ("manifest.json", _other_revision),
    ("tokenizer.json", lambda content: content[:-1]),
    ("onnx/model_int8.onnx", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
)
