"""Many streams at once, also during SIGTERM, on a real process and its sockets."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Start
from tests.support.serving import STUCK_COMMAND, Process, before_inference, eventually, metric
from tests.support.streams import STREAM_HEAD, chunk

STREAMS = 60
ENOUGH = 10  # lines that every stream should have answered
DEADLINE_MS = 200  # each line waits for longer than that, with so many beside it
DRAIN_MS = 20_000
LINES = chunk(b"".join(b'{"id":%d,"text":"love"}\n' % number for number in range(20_000)))
# A batch of ten lines in 20 ms, so that there is much to wait for.
SLOW_FLAGS = "--runners 1 --threads 1 --max-batch-tokens 30"
SLOW_COMMAND = before_inference("time.sleep(0.02)")


@dataclass
class Stream:
    """A client that sends more lines than the server will take; it keeps what it receives."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False  # its last chunk came

    async def talk(self, port: int) -> None:
        """Send lines and read answers until the stream ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(STREAM_HEAD + LINES)
        # The server closes while this sends: what came before can be read, then there is a reset.
        with suppress(ConnectionError):
            while line := await reader.readline():
                if line.startswith(b"{"):
                    self.answers.append(json.loads(line))
                self.complete |= line == b"0\r\n"
        writer.close()


@dataclass
class Seen:
    """What happened to streams that began together, until some time after SIGTERM."""

    streams: list[Stream]
    when_all_had_one: list[int]  # how many answers each had then
    when_all_had_enough: list[int]
    exit_code: int
    log: str


async def _watch(process: Process) -> Seen:
    streams = [Stream() for _ in range(STREAMS)]
    talking = [asyncio.create_task(stream.talk(process.port)) for stream in streams]

    async def answers_when_all_have(least: int) -> list[int]:
        def have() -> bool:
            return min(len(stream.answers) for stream in streams) >= least

        await asyncio.to_thread(eventually, have)
        return [len(stream.answers) for stream in streams]

    one, enough = await answers_when_all_have(1), await answers_when_all_have(ENOUGH)
    process.signal(signal.SIGTERM)
    code, log = await asyncio.to_thread(process.wait)
    await asyncio.wait_for(asyncio.gather(*talking), 30)
    return Seen(streams, one, enough, code, log)


@pytest.fixture(scope="module")
def seen(bundle: Path) -> Iterator[Seen]:
    flags = f"{SLOW_FLAGS} --deadline-ms {DEADLINE_MS} --drain-ms {DRAIN_MS}".split()
    with Process("--model", str(bundle), *flags, command=SLOW_COMMAND) as process:
        yield asyncio.run(_watch(process))


def test_each_stream_has_its_first_answer_before_any_is_far_ahead(seen: Seen) -> None:
    """Streams take turns, so each one gets its first answer soon, and further answers."""
    assert max(seen.when_all_had_one) <= 50
    assert max(seen.when_all_had_enough) <= ENOUGH + 50


def test_each_line_has_its_answer_until_sigterm_ends_every_stream(seen: Seen) -> None:
    """Lines do not expire while they wait; they are answered in order.

    At SIGTERM, every stream gets a last line that says why it ends, and its last chunk.
    """
    for stream in seen.streams:
        _assert_ended_in_order(stream)
        results = [answer for answer in stream.answers if "error" not in answer]
        assert [answer["id"] for answer in results] == list(range(len(results)))
        assert {answer["label"] for answer in results} == {"positive"}
    assert seen.exit_code == 0
    assert "Traceback" not in seen.log


def _assert_ended_in_order(stream: Stream) -> None:
    """Each line has one answer or ``shutting_down``; so has the end, which is complete."""
    *answers, last = stream.answers
    assert (last["id"], last["error"]["code"]) == (None, "shutting_down")
    assert [answer["id"] for answer in answers] == list(range(len(answers)))
    codes = {answer["error"]["code"] for answer in stream.answers if "error" in answer}
    assert codes == {"shutting_down"}
    assert stream.complete


def test_streams_end_in_order_when_there_is_no_time_left(start: Start) -> None:
    """If inference is stuck, clients that read get the last line; other clients delay nobody."""

    def all_are_read(process: Process) -> bool:
        """Some wait for results, others for their turn."""
        waiting = metric(process.client, "sentiment_queue_texts")
        return waiting > 0 and metric(process.client, "sentiment_http_requests_in_flight") == 12

    async def end(process: Process) -> tuple[list[Stream], str]:
        _, silent = await asyncio.open_connection("127.0.0.1", process.port)
        silent.write(STREAM_HEAD + b"%x\r\n" % 600_000 + b"x\n" * 300_000)
        streams = [Stream() for _ in range(10)]
        talking = [asyncio.create_task(stream.talk(process.port)) for stream in streams]
        await asyncio.to_thread(eventually, lambda: all_are_read(process))
        process.signal(signal.SIGTERM)
        code, log = await asyncio.to_thread(process.wait)
        assert code == 1  # results were lost
        await asyncio.wait_for(asyncio.gather(*talking), 30)
        silent.close()
        return streams, log

    flags = f"{SLOW_FLAGS} --drain-ms 500".split()
    streams, log = asyncio.run(end(start(*flags, command=STUCK_COMMAND)))
    for stream in streams:
        _assert_ended_in_order(stream)
    assert "Traceback" not in log
