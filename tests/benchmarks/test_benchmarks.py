"""What the figures rest on: the load generator, the texts, the report."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sentiment_service.cli.bench.load import PERCENTILES, TOKENS, WORDS, Load, run, tweet_lengths
from sentiment_service.config.settings import Settings
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE
from sentiment_service.main import create_app
from tokenizers import Tokenizer

from benchmarks import report
from benchmarks.cpu_time import event_loop
from benchmarks.cpu_time.client import send_slice
from benchmarks.cpu_time.turns import Load as Slices
from benchmarks.random_checkpoint import random_checkpoint
from benchmarks.sections import int8_speed
from benchmarks.service import Service
from benchmarks.subject import Goal, Subject
from benchmarks.watched import watched
from tests.conftest import FLAGS, SET_BY_HAND
from tests.support.serving import listening

BODIES = ['{"inputs": "love"}', '{"inputs": "worst"}']


@pytest.fixture
def url(bundle: Path) -> Iterator[str]:
    """Where the service, on a real socket, classifies."""
    with listening(create_app(Settings.model_validate({"model": (bundle,), **SET_BY_HAND}))) as url:
        yield f"{url}/classify"


def test_random_checkpoints_have_words_of_one_token(tmp_path: Path) -> None:
    """Without merges, each letter would be a token, and texts of 26 tokens five words."""
    small = {
        "hidden_size": 8,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "vocab_size": 1_000,
    }
    checkpoint = random_checkpoint(tmp_path / "small", "roberta", intermediate_size=8, **small)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    words = WORDS.split()
    assert len(tokenizer.encode(WORDS, add_special_tokens=False)) < 1.1 * len(words)


def test_a_closed_loop_keeps_every_connection_busy(url: str) -> None:
    """Answers are counted by status, only after the warm-up, each with its latency."""
    outcome = run(Load(url, BODIES, connections=3, seconds=0.5, warm_up_seconds=0.1))
    assert set(outcome.latencies) == {"200"}
    assert outcome.ok() > 10
    assert outcome.ok_per_second() == outcome.ok() / 0.5
    assert 0 < outcome.percentile_ms(50) <= outcome.percentile_ms(99) < 600


def test_open_arrivals_come_at_their_rate(url: str) -> None:
    """However long answers take: 200 in a second, give or take what chance gives."""
    load = Load(url, BODIES, 8, seconds=1.0, warm_up_seconds=0.2, rate=200.0)
    outcome = run(load)
    assert 140 < outcome.ok() < 260


def test_errors_are_counted_apart(url: str) -> None:
    """A refused request is no throughput."""
    outcome = run(Load(url, ['{"inputs": ""}'], 1, 0.3, warm_up_seconds=0.0))
    assert outcome.ok() == 0
    assert len(outcome.latencies["422"]) > 5


def test_connections_that_break_are_counted_and_replaced() -> None:
    """A server that hangs up after each request loses every one of them, and is asked again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        seen: list[bytes] = []

        def hang_up() -> None:
            while len(seen) < 20:
                connection, _ = listener.accept()
                with connection:
                    seen.append(connection.recv(10_000))

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        number = listener.getsockname()[1]
        outcome = run(
            Load(f"http://127.0.0.1:{number}/", ["{}"], 1, seconds=0.5, warm_up_seconds=0.0)
        )
        thread.join(10)
    assert len(outcome.latencies["lost"]) >= 5
    assert seen[0].startswith(b"POST / HTTP/1.1\r\nhost: 127.0.0.1:")


def test_a_slice_counts_complete_answers(url: str) -> None:
    """CPU time is read before the first request and after the last answer, and shared out."""
    readings = iter((np.array([0, 10_000]), np.array([2_000, 30_000])))
    found = asyncio.run(
        send_slice(
            url,
            BODIES,
            connections=3,
            seconds=0.2,
            cpu_ns=lambda: next(readings),
        )
    )
    assert found.answers >= 3
    assert found.cpu_us * found.answers == pytest.approx([2.0, 20.0])
    assert found.per_second == found.answers / found.seconds


def test_a_refused_request_ends_a_slice(url: str) -> None:
    """The cost of an error is not taken for that of an answer."""
    with pytest.raises(RuntimeError, match="an answer has status 404"):
        asyncio.run(
            send_slice(
                url.replace("/classify", "/nowhere"),
                BODIES,
                connections=1,
                seconds=0.2,
                cpu_ns=lambda: np.array([0]),
            )
        )


def test_lengths_are_those_of_tweets() -> None:
    """The percentiles below the tail are met, and one text in a hundred is longer."""
    lengths = tweet_lengths(20_000)
    for percent, tokens in zip(PERCENTILES[1:-1], TOKENS[1:-1], strict=True):
        assert np.percentile(lengths, percent) == pytest.approx(tokens, abs=1)
    assert 400 < max(lengths) <= 512
    assert np.mean(np.array(lengths) > TOKENS[-1]) == pytest.approx(0.01, abs=0.003)


def test_the_report_has_goals_tables_and_conditions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A section replaces its earlier run and leaves the others; a missed goal is called so."""
    conditions = {"date": "2026-01-02", "machine": "a machine", "versions": "some"}
    row = {"model": "tiny", "texts/s": 123.4, "p50 ms": 1.234, "p99 ms": 5.0, "connections": 2}
    goals = [Goal("fast", 0.9, 0.8), Goal("late", 30.0, 20.0, most=True, remark="1 to 2")]
    report.keep(tmp_path, "tiny by connections", conditions, [row, *goals])
    report.keep(tmp_path, "other", conditions, [{"x": 1}])
    report.keep(tmp_path, "other", conditions, [{"x": 2}])
    report.write(tmp_path)
    assert "MISSED" in capsys.readouterr().out
    text = (tmp_path / "README.md").read_text()
    assert "| fast | 0.9 | ≥ 0.8 |  |" in text
    assert "| late | 30 (**missed**) | ≤ 20 | 1 to 2 |" in text
    assert "| tiny | 123 | 1.23 | 5 | 2 |" in text
    assert "2026-01-02. a machine. some" in text
    assert json.loads((tmp_path / "results.json").read_text())["other"]["rows"] == [{"x": 2}]
    assert (tmp_path / "connections.svg").stat().st_size > 1_000


@pytest.mark.parametrize("name", ["deberta-v3-small", "modernbert-base"])
def test_shapes_of_architectures_are_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """fp32, stock int8 and our int8 get a figure for each batch, here with small layers."""
    monkeypatch.setattr(int8_speed, "SECONDS_PER_TURN", 0.01)
    model_type, config = int8_speed.SHAPES[name]
    small = {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96}
    small |= {"vocab_size": 500, "num_hidden_layers": 2, "pooler_hidden_size": 48}
    rows = list(int8_speed.by_shape(2, {name: (model_type, config | small)}))
    assert [(row["tokens a text"], row["texts a batch"]) for row in rows] == [*int8_speed.BATCHES]
    names = (int8_speed.FP32, int8_speed.STOCK, int8_speed.OURS)
    assert all(row[f"{name}, texts/s"] > 0 for row in rows for name in names)


def test_the_services_own_figures_are_those_of_the_load() -> None:
    """What its metrics count between two scrapes, and its CPU time, without the warm-up."""
    with Service(EMBEDDED_BUNDLE, *FLAGS) as service:
        load = Load(f"{service.url}/classify", BODIES, 2, seconds=1.0, warm_up_seconds=0.2)
        seen = watched(service, load)
        answered = service.metrics()["texts_total"]
    assert 0 < seen.grown("texts_total") < answered
    assert seen.seconds < 5
    assert seen.cpu_seconds > 0
    assert seen.mean("batch_texts") >= 1
    assert seen.outcome.ok() > 0


def test_the_event_loops_cpu_time_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a row for each load and server, and the bare route is compared with itself."""
    subject = Subject("embedded", EMBEDDED_BUNDLE, "int8", count=8, seconds=1.0, connections=1)
    monkeypatch.setattr(event_loop, "LOADS", (Slices(2, 1), Slices(1, 2)))
    monkeypatch.setattr(event_loop, "SECONDS", 0.05)
    rows = list(event_loop.beside_bare(subject, rounds=1))
    assert len(rows) == 2 * 6
    assert all(row["CPU µs a request"] > 0 and row["texts/s"] > 0 for row in rows)
    assert {row["÷ bare FastAPI"] for row in rows if "FastAPI" in row["server"]} == {1.0}
