"""POST /classify/stream: lines are read and answered at the same time."""

import asyncio
import gc
import gzip
import json
import signal
import subprocess
import time
import tracemalloc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import brotli
import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sentiment_service.adapters import stream
from sentiment_service.adapters.ndjson import Line, LineReader
from sentiment_service.adapters.stream import StreamedAnswers
from sentiment_service.engine.classifier import INLINE_CHARS
from sentiment_service.engine.options import DEFAULTS
from sentiment_service.errors import Overloaded, PayloadTooLarge
from sentiment_service.http.decoding import decoder
from sentiment_service.http.routes import HttpExchange
from sentiment_service.requests.exchange import Arrival
from sentiment_service.requests.limits import InflightBytes
from sentiment_service.shared_memory import Board

from tests.conftest import Listen, Serve, Start, served
from tests.support.raw_http import connect, exchange
from tests.support.serving import (
    SLOW_COMMAND,
    Gate,
    Process,
    Program,
    eventually,
    installed,
    metric,
)
from tests.support.streams import NDJSON, STREAM_HEAD, ask_line, chunk
from tests.support.tiny_bundle import different_texts

# A real server, because the result depends on how bytes arrive and leave.
process = served()


def _post(client: TestClient, content: str | bytes, **options: Any) -> list[dict[str, Any]]:
    answer = client.post("/classify/stream", content=content, headers=NDJSON, **options)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def _lines(count: int) -> bytes:
    words = ("love", "worst", "it")
    return b"".join(b'{"id":%d,"text":"%s"}\n' % (n, words[n % 3].encode()) for n in range(count))


def _different_lines(count: int) -> bytes:
    """Lines that share no rows of a batch."""
    texts = enumerate(different_texts(count))
    return b"".join(b'{"id":%d,"text":"%s"}\n' % (n, text.encode()) for n, text in texts)


def _peak_kib(process: Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)


def test_each_line_has_its_answer_with_its_id_in_order(client: TestClient) -> None:
    """Lines get the same results as from POST /classify, with their ids, which may be any JSON."""
    texts = {"a": "love", "b": "worst", "c": "it " * 20, "d": "nan"}
    content = "\n".join(json.dumps({"id": {"x": [key]}, "text": texts[key]}) for key in texts)
    plain = client.post("/classify", json={"inputs": list(texts.values())}).json()["results"]
    expected = [{"id": {"x": [key]}, **one} for key, one in zip(texts, plain, strict=True)]
    assert _post(client, content) == expected


def _room(size: int = 1_000_000) -> InflightBytes:
    return InflightBytes(size, Board.alone().parts("streams"))


def test_what_a_line_has_beyond_the_limit_is_not_kept() -> None:
    """Bytes beyond the limit of a line are not kept, whatever its length and its pieces."""
    reader = LineReader(1_000, _room())
    tracemalloc.start()
    try:
        for _ in range(1_000):
            assert list(reader.feed(bytes(100_000), lambda: 512)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    (line,) = reader.end()
    assert isinstance(line, Line)
    assert isinstance(line.text, PayloadTooLarge)


def _groups(piece: bytes, group_bytes: int = 1_000_000) -> list[int]:
    """The number of lines in each group."""
    reader = LineReader(1_000, _room())
    return [len(lines) for lines in reader.feed(piece, lambda: group_bytes)]


def test_groups_of_lines_grow_and_stay_as_short_as_asked() -> None:
    """Groups double from one line up to a limit; a line longer than a group's limit goes alone."""
    assert _groups(_lines(400)) == [1, 2, 4, 8, 16, 32, 64, 128, 128, 17]
    assert _groups(b'{"text":"abc"}\n' * 8, group_bytes=40) == [1, 2, 3, 2]
    assert _groups(b'{"text":"abc"}\n' * 3, group_bytes=0) == [1, 1, 1]


def _read(reader: LineReader, piece: bytes) -> list[Any]:
    return [line for lines in reader.feed(piece, lambda: 1_000) for line in lines]


def test_a_line_is_kept_while_there_is_room_for_it() -> None:
    """A line's bytes are released when it is answered, or when it turns out to be too long."""
    room = _room(100)
    reader = LineReader(90, room)
    assert _read(reader, b'{"text":') == []
    assert room.remaining == 92
    (line,) = _read(reader, b'"love"}\n')
    assert (line.text, room.remaining) == ("love", 92)
    reader.answered([line])
    assert room.remaining == 100
    assert _read(reader, b" " * 80) == _read(reader, b"\n") == []
    assert room.remaining == 100
    _read(reader, b"a" * 80)
    assert room.remaining == 20
    _read(reader, b"a" * 80)
    assert room.remaining == 100
    (line,) = _read(reader, b"a\n")
    assert isinstance(line.text, PayloadTooLarge)


def test_a_line_that_finds_no_room_is_overloaded_in_its_place() -> None:
    """A line without room gets an error in its place, keeps no bytes, and later lines are read."""
    room = _room(10)
    reader = LineReader(1_000, room)
    assert _read(reader, b'{"text":') == []
    assert _read(reader, b'"love ') == []
    assert room.remaining == 10
    overloaded, last = _read(reader, b'love"}\n{"text":"worst"}\n')
    assert isinstance(overloaded.text, Overloaded)
    assert (overloaded.id, last.text) == (b"null", "worst")


def test_a_stream_that_ends_gives_back_all_its_room() -> None:
    """A stream that ends releases all its bytes, including those of lines that stay unanswered."""
    room = _room(100)
    reader = LineReader(1_000, room)
    _read(reader, b'{"text":')
    _read(reader, b'"love"}\n{"text":')
    assert room.remaining < 90
    reader.close()
    assert room.remaining == 100


def test_a_line_is_answered_while_the_request_goes_on(process: Process) -> None:
    """A client may wait for each answer before it sends the next line."""
    with connect(process.port, STREAM_HEAD) as connection, connection.makefile("rb") as received:
        for number in range(3):
            ask_line(connection, received, number)
        connection.sendall(b"0\r\n\r\n")
        assert received.read(7).endswith(b"0\r\n\r\n")


def test_memory_does_not_grow_with_the_stream(start: Start, tmp_path: Path) -> None:
    """Five times as many lines need no more memory; curl sends and reads at the same time.

    The queue is short: how full it gets depends on how often runners and event loop get a CPU.
    """
    process = start("--max-queue-tokens", "2048", "--max-batch-tokens", "512", "--runners", "1")

    def peak_kib(count: int) -> int:
        source = tmp_path / "lines"
        source.write_bytes(_lines(count))
        command = [installed("curl", "curl"), "-sS", "-N", "-X", "POST"]
        command += ["-H", "content-type: application/x-ndjson"]
        seen = 0
        with Program(
            [*command, "-T", str(source), f"{process.url}/classify/stream"], stdout=subprocess.PIPE
        ) as curl:
            assert curl.stdout
            for line in curl.stdout:
                assert line.startswith(b'{"id":%d,' % seen)
                seen += 1
        assert seen == count
        return _peak_kib(process)

    first = peak_kib(10_000)
    assert peak_kib(50_000) < first + 10_000


def test_a_bomb_is_refused_and_holds_up_nobody(client: TestClient) -> None:
    """Data that decompress to hundreds of times their size are cut off, and get an error line."""
    headers = {**NDJSON, "content-encoding": "br"}
    for filling in (b"\n", b"a"):
        packed = brotli.compress(_lines(3) + filling * 50_000_000, quality=5)
        answer = client.post("/classify/stream", content=packed, headers=headers)
        lines = answer.text.splitlines()
        assert [json.loads(line)["id"] for line in lines[:3]] == [0, 1, 2]
        assert json.loads(lines[-1])["error"]["code"] == "payload_too_large"


def test_long_lines_are_answered_in_their_places(client: TestClient) -> None:
    """Among short ones, with their ids and errors; what is too deep or no object fails alone."""
    padding = "a" * 70_000
    lines = [
        '{"id": 0, "text": "love"}',
        json.dumps({"id": 1, "text": "worst", "unknown": padding}),
        '{"id": 2, "text": "love"}',
        json.dumps([padding]),
        json.dumps({"id": padding, "text": "love"}),
        "[" * 70_000,
        json.dumps({"id": 3, "text": "worst", "unknown": padding}),
    ]
    answers = _post(client, "\n".join(lines))
    assert [one["id"] for one in answers] == [0, 1, 2, None, None, None, 3]
    labels = [one.get("label") for one in answers]
    assert labels == ["positive", "negative", "positive", None, None, None, "negative"]


TAKEN = "the options in its query are model, overflow, language, threshold"


@pytest.mark.parametrize("option", ["model", "overflow", "threshold", "split"])
def test_an_option_in_a_line_is_refused_in_its_place(client: TestClient, option: str) -> None:
    """It is not ignored in silence: the answer would be to another question.

    Null, which rows without a value have, asks for nothing. Other members, and the language of a
    row's text, are the client's own.
    """
    lines: list[dict[str, Any]] = [
        {"id": 1, "text": "love", option: None, "language": "de"},
        {"id": 2, "text": "love", option: "tiny"},
    ]
    kept, refused = _post(client, "\n".join(map(json.dumps, lines)))
    assert kept["label"] == "positive"
    reason = f"put {option} in the query: it holds for all lines"
    if option == "split":
        reason = f"a stream does not take split; {TAKEN}"
    error = {"code": "invalid_request", "message": f"line 2: {reason}"}
    assert refused == {"id": 2, "error": error}


@pytest.mark.parametrize("name", ["split", "inputs"])
def test_a_field_that_a_stream_does_not_take_is_refused_in_its_query(
    client: TestClient, name: str
) -> None:
    """It would be ignored otherwise. What is no field of POST /classify is: proxies add theirs."""
    url = "/classify/stream?request=1"
    answer = client.post(f"{url}&{name}=sentences", content=_lines(1), headers=NDJSON)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["detail"] == f"a stream does not take {name}; {TAKEN}"
    assert client.post(url, content=_lines(1), headers=NDJSON).status_code == 200


@pytest.mark.parametrize(
    "line_id", [f'"{"a" * 1_023}"', f'"{"é" * 171}"', f"[{'1, ' * 400}1]", "9" * 1_025]
)
def test_an_id_is_short(client: TestClient, line_id: str) -> None:
    """Answers that wait for a client have the ids of their lines, so a long one is an error."""
    lines = [f'{{"id": {each}, "text": "love"}}' for each in (f'"{"a" * 1_000}"', line_id)]
    kept, refused = _post(client, "\n".join(lines))
    assert kept["label"]
    assert (refused["id"], refused["error"]["code"]) == (None, "invalid_request")
    assert "more than 1024 bytes" in refused["error"]["message"]


def test_what_decompressing_takes_is_counted(serve: Serve) -> None:
    """Brotli's window of 16 MB is refused where streams may take 8 MB; one of 4 MB is not.

    It is given back at the end of the stream.
    """
    client = serve(max_inflight_bytes=16_000_000)
    headers = {**NDJSON, "content-encoding": "br"}
    for window in (22, 24, 22, 22):
        packed = brotli.compress(_lines(3), lgwin=window)
        answer = client.post("/classify/stream", content=packed, headers=headers)
        lines = [json.loads(line) for line in answer.text.splitlines()]
        codes = [line["error"]["code"] if "error" in line else "" for line in lines]
        assert codes == (["overloaded"] if window == 24 else [""] * 3)


def test_a_stream_that_fails_leaves_nothing_to_the_collector(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What decompresses it, with its window of up to 16 MB, goes with its end."""
    made: list[weakref.ref[Any]] = []

    def remembered(encoding: str) -> Any:
        made.append(weakref.ref(one := decoder(encoding)))
        return one

    monkeypatch.setattr(stream, "decoder", remembered)
    packed = brotli.compress(_lines(3))[:-4] + b"oops"
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            headers = {**NDJSON, "content-encoding": "br"}
            answer = client.post("/classify/stream", content=packed, headers=headers)
            assert json.loads(answer.text.splitlines()[-1])["error"]["code"]
        assert [one() for one in made] == [None] * 3
    finally:
        gc.enable()


def test_a_body_that_waits_for_the_thread_counts_its_window(serve: Serve) -> None:
    """Beside the content, decompressing a long body may take 19 MB."""
    client = serve(max_inflight_bytes=16_000_000)
    headers = {"content-type": "application/json", "content-encoding": "br"}
    long = json.dumps({"inputs": ["love"] * 1_000, "": "a" * 100_000}).encode()
    statuses = [
        client.post("/classify", content=brotli.compress(body, lgwin=window), headers=headers)
        for body, window in ((b'{"inputs": "love"}', 24), (long, 22), (long, 24), (long, 22))
    ]
    assert [answer.status_code for answer in statuses] == [200, 422, 429, 422]


def test_a_stream_is_compressed_with_little_memory(client: TestClient) -> None:
    """gzip takes 0.3 MB as long as a stream lasts, brotli and zstd several."""
    for accepted, encoding in (("br, zstd, gzip", "gzip"), ("br, zstd", None)):
        headers = {**NDJSON, "accept-encoding": accepted}
        answer = client.post("/classify/stream", content=_lines(1), headers=headers)
        assert answer.headers.get("content-encoding") == encoding
        assert answer.json()["label"] == "positive"


def test_memory_does_not_grow_with_bad_lines(process: Process) -> None:
    """Memory does not grow with bad lines, even with as many as fit into the body."""
    before = _peak_kib(process)
    content = (b"x\n" * 400 + _lines(1)) * 375
    answer = process.client.post("/classify/stream", content=content, headers=NDJSON)
    assert answer.text.count("\n") == 375 * 401
    assert _peak_kib(process) < before + 20_000
    labels = {"model": "tiny", "outcome": "invalid_request"}
    assert metric(process.client, "sentiment_texts_total", **labels) == 150_000


def test_a_stream_that_says_nothing_ends(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without new lines ends with an error line, even if keep-alive is longer."""
    monkeypatch.setattr(stream, "IDLE_S", 0.1)
    received = exchange(listen(keep_alive_s=1), STREAM_HEAD + chunk(_lines(1)))
    assert b'{"id":0,"label":"positive"' in received
    assert b'{"id":null,"error":{"code":"deadline_exceeded"' in received


def test_a_client_that_does_not_read_is_not_read_from(process: Process) -> None:
    """If a client does not read, the server stops reading its lines (backpressure)."""
    with connect(process.port) as connection:
        connection.settimeout(3)
        left = memoryview(STREAM_HEAD + chunk(_lines(500_000)))
        with suppress(TimeoutError):  # nothing was taken for a while
            while left:
                left = left[connection.send(left[:65_536]) :]
    assert len(left) > 1_000_000
    assert process.client.post("/classify", json={"inputs": "love"}).status_code == 200


def test_what_a_client_that_left_had_sent_is_not_computed(gate: Gate, listen: Listen) -> None:
    """When a client leaves, its groups are taken out of the queue."""
    port = listen(runners=1, max_batch_tokens=32)
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        gate.close()
        with connect(port, STREAM_HEAD + chunk(_different_lines(1_000))):
            assert gate.reached.wait(30)
            eventually(lambda: metric(client, "sentiment_queue_texts", model="tiny") > 0)
        eventually(lambda: metric(client, "sentiment_queue_texts", model="tiny") == 0)
        gate.open.set()
        labels = {"model": "tiny", "outcome": "client_disconnected"}
        assert metric(client, "sentiment_texts_total", **labels) > 0


@pytest.mark.parametrize(("begun", "status"), [(False, "499"), (True, "200")])
async def test_a_client_that_left_is_counted_as_such(
    serve: Serve, begun: bool, status: str
) -> None:
    """Metrics have the status that was sent, or 499 if none was: it is no failure of the service.

    A real client would leave at the one or the other moment by chance.
    """
    client = serve()
    app = cast(FastAPI, client.app)
    arrival = Arrival(0.0, departed=not begun)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(_: Any) -> None:
        if begun:
            arrival.departed = True
            asyncio.get_running_loop().call_soon(cast(Callable[[], object], arrival.on_departure))

    headers = [(b"content-type", b"application/x-ndjson")]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/classify/stream"}
    scope |= {"headers": headers, "query_string": b"", "client": None, "arrival": arrival}
    await HttpExchange(app.state.service, app.router, scope, receive, send).run()
    labels = {"operation": "stream", "outcome": "client_disconnected", "status": status}
    assert metric(client, "sentiment_http_requests_total", **labels) == 1


@pytest.mark.parametrize(("cut", "outcome"), [(0, "ok"), (9, "invalid_request")])
def test_a_stream_over_a_closing_connection_is_counted_by_its_end(
    listen: Listen, cut: int, outcome: str
) -> None:
    """No client has left where the server closes behind the last line, be that an error or not."""
    port = listen()
    packed = gzip.compress(_lines(3))
    body = packed[: len(packed) - cut]
    headers = NDJSON | {"connection": "close", "content-encoding": "gzip"}
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        answer = client.post("/classify/stream", content=body, headers=headers)
        last = json.loads(answer.text.splitlines()[-1])
        assert last.get("error", {}).get("code", "ok") == outcome
        eventually(lambda: metric(client, "sentiment_http_requests_in_flight") == 1)
        labels = {"operation": "stream", "outcome": outcome, "status": "200"}
        assert metric(client, "sentiment_http_requests_total", **labels) == 1


def test_a_full_queue_makes_a_stream_wait(
    serve: Serve, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    """A full queue delays a stream but does not refuse it: every line is answered in the end."""
    client = serve(runners=1, max_batch_tokens=8, max_queue_tokens=64)
    gate.close()
    asked = pool.submit(_post, client, _different_lines(600))
    eventually(lambda: metric(client, "sentiment_queue_tokens", model="tiny") > 9)
    time.sleep(0.2)  # others ask in vain
    gate.open.set()
    answers = asked.result(30)
    assert [answer["id"] for answer in answers] == list(range(600))
    assert not [answer for answer in answers if "error" in answer]
    labels = {"model": "tiny", "reason": "queue_full"}
    assert metric(client, "sentiment_rejections_total", **labels) == 0
    assert metric(client, "sentiment_texts_total", model="tiny", outcome="ok") == 600


def test_a_line_that_is_tokenised_on_a_thread_waits_for_a_full_queue(
    serve: Serve, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    """A line too long for the event loop is not refused either while others fill the queue."""
    client = serve(runners=1, max_batch_tokens=8, max_queue_tokens=64)
    gate.close()
    texts = different_texts(8)
    for inputs in (texts[:4], texts[4:]):
        pool.submit(client.post, "/classify", json={"inputs": inputs})
    eventually(lambda: metric(client, "sentiment_queue_tokens", model="tiny") == 56)
    answers = pool.submit(_post, client, json.dumps({"text": "love " * INLINE_CHARS}))
    time.sleep(0.2)  # the line asks in vain
    gate.open.set()
    assert [answer.get("label", answer) for answer in answers.result(30)] == ["positive"]


def test_lines_have_no_deadline(serve: Serve, gate: Gate, pool: ThreadPoolExecutor) -> None:
    """deadline-ms does not apply to the lines of a stream."""
    client = serve(runners=1, deadline_ms=30)
    gate.close()
    asked = pool.submit(_post, client, _lines(300))
    assert gate.reached.wait(30)
    time.sleep(0.25)
    gate.open.set()
    assert [answer.get("label", answer) for answer in asked.result(30)] == [
        ("positive", "negative", "neutral")[n % 3] for n in range(300)
    ]


def test_lines_that_no_queue_would_hold_together_go_one_after_the_other(serve: Serve) -> None:
    """A group that exceeds the queue is halved; a single text that exceeds it gets an error."""
    client = serve(max_queue_tokens=64)
    long, huge = json.dumps({"text": "a " * 14}), json.dumps({"text": "a " * 60})
    answers = _post(client, "\n".join([long] * 8 + [huge]), params={"overflow": "window"})
    assert [answer.get("label") for answer in answers] == ["neutral"] * 8 + [None]
    assert answers[-1]["error"]["code"] == "too_many_texts"


async def test_a_stream_that_is_cancelled_after_its_end_says_no_more(client: TestClient) -> None:
    """A stream that is cancelled just after its end, when drain-ms is over, sends nothing more."""
    app = cast(FastAPI, client.app)
    service = app.state.service
    sent: list[Any] = []

    async def receive() -> Any:
        if sent:  # the whole body was read
            await asyncio.Event().wait()
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)
        if message == {"type": "http.response.body", "body": b""}:
            service.lifecycle.stop()
            cast(asyncio.Task[None], asyncio.current_task()).cancel()

    scope: dict[str, Any] = {"method": "POST", "path": "/", "query_string": b""}
    scope |= {"headers": [], "client": None}
    exchange = HttpExchange(service, app.router, scope, receive, send)
    answers = StreamedAnswers(exchange, service.models.classifiers.of(None), DEFAULTS, decoder(""))
    await asyncio.create_task(answers(scope, receive, send))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


def test_shutdown_ends_a_stream_with_a_word(start: Start) -> None:
    """At SIGTERM, each line read gets one answer or shutting_down; the exit code is 0."""
    process = start(command=SLOW_COMMAND)
    with connect(process.port, STREAM_HEAD + chunk(_lines(400))) as connection:
        received = connection.makefile("rb")
        next(line for line in received if line.startswith(b'{"id":0,'))
        process.signal(signal.SIGTERM)
        rest = [line for line in received if line.startswith(b"{")]
    code, _ = process.wait()
    answers = [json.loads(line) for line in rest]
    last = answers.pop()
    assert (last["id"], last["error"]["code"]) == (None, "shutting_down")
    assert [answer["id"] for answer in answers] == list(range(1, 400))
    codes = {answer["error"]["code"] for answer in answers if "error" in answer}
    assert codes <= {"shutting_down"}
    assert code == 0


def test_an_idle_stream_ends_at_shutdown(start: Start) -> None:
    """A client that says nothing and keeps its stream open is told, long before --drain-ms."""
    process = start("--drain-ms", "600000")
    with connect(process.port, STREAM_HEAD) as connection, connection.makefile("rb") as received:
        ask_line(connection, received, 0)
        process.signal(signal.SIGTERM)
        assert b'"code":"shutting_down"' in received.read()
    assert process.wait()[0] == 0
