"""``--shadow``: a candidate classifies texts that were answered, and may become the model."""

import ctypes
import json
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sentiment_service.cli.command import main
from sentiment_service.engine.model.bundle import MANIFEST, sha256
from sentiment_service.engine.shadow import MOST_CHARS

from checks.support.load import constant_load
from tests.conftest import Serve, Start
from tests.support.reloads import ADMIN, release, reload
from tests.support.serving import (
    SLOW_COMMAND,
    Gate,
    Process,
    eventually,
    metric,
    runs,
    state_of,
)
from tests.support.streams import NDJSON
from tests.support.tiny_bundle import LABELS, MAX_TOKENS, WORDS, make_bundle, write_manifest

# The candidate's labels are in the reverse order, so it gives `love` and `worst` the other's label.
TEXTS = ["love", "worst", "it", "love it", "meh"]
ALL = ("--shadow-share", "1")
PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    """A bundle that differs from the tiny one in its name and in what it says of two words."""
    return make_bundle(tmp_path / "candidate", labels=LABELS[::-1], name="next")


@pytest.fixture
def tried(start: Start, candidate: Path) -> Process:
    """A service that tries the candidate, which is loaded."""
    process = start("--shadow", str(candidate), *ALL, "--admin-keys", "admin-key-1")
    eventually(lambda: "is tried" in shadow(process.client)["summary"])
    return process


def shadow(client: httpx2.Client) -> dict[str, Any]:
    """What GET /info says of the candidate."""
    said: dict[str, Any] = client.get("/info").json()["shadow"]
    return said


def classify(client: httpx2.Client, inputs: object, **fields: object) -> list[str]:
    """The labels of the texts."""
    answer = client.post("/classify", json={"inputs": inputs, **fields})
    return [result.get("label", "none") for result in answer.json()["results"]]


def promote(client: httpx2.Client, name: str = "tiny") -> httpx2.Response:
    return client.post(f"/models/{name}/promote", headers=ADMIN)


def counted(client: httpx2.Client, outcome: str) -> float:
    return metric(client, "sentiment_shadow_texts_total", outcome=outcome)


def test_a_candidate_without_a_thread_is_not_tried(
    serve: Serve,
    candidate: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The service starts all the same: the log says why, and the model answers.

    Python would warn of a process that is left behind, and a warning fails the test.
    """
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "candidate":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    client = serve(shadow=candidate)
    assert classify(client, ["love"]) == ["positive"]
    assert "no candidate is tried beside tiny: can't start new thread" in caplog.text


def test_what_is_counted_is_what_an_offline_count_gives(serve: Serve, candidate: Path) -> None:
    """Each pair of labels, and the polarity's difference, of texts that both classify alone."""
    client, other = serve(shadow=candidate, shadow_share=1), serve(model=(candidate,))
    texts = [" ".join(random.Random(n).choices(("love", "worst", "it"), k=5)) for n in range(100)]
    pairs: dict[tuple[str, str], int] = {}
    differences = []
    for text in texts:
        mine, theirs = (
            one.post("/classify", json={"inputs": text}).json()["results"][0]
            for one in (client, other)
        )
        pair = mine["label"], theirs["label"]
        pairs[pair] = pairs.get(pair, 0) + 1
        differences.append(abs(mine["polarity"] - theirs["polarity"]))
    eventually(lambda: shadow(client)["texts"] == len(texts))
    said, agreed = shadow(client), sum(pairs[pair] for pair in pairs if pair[0] == pair[1])
    assert said["agreed"] == agreed == counted(client, "agreed")
    assert said["skipped"] == 0
    assert f"the same label for {agreed} of 100 texts" in said["summary"]
    for (label, candidate_label), number in pairs.items():
        labels = {"label": label, "candidate_label": candidate_label}
        assert metric(client, "sentiment_shadow_labels_total", **labels) == number
    total = metric(client, "sentiment_shadow_polarity_difference_sum")
    assert total == pytest.approx(sum(differences))
    assert metric(client, "sentiment_shadow_duration_seconds_count") == len(texts)


def test_the_same_weights_differ_in_nothing(pairs_tried: Process) -> None:
    """Texts share batches with others at the model, but not at the candidate: the bits are equal.

    So every difference that is counted is one of the models.
    """
    client = pairs_tried.client
    before = counted(client, "agreed")
    classify(client, [*TEXTS, "love love worst it it"] * 20)
    eventually(lambda: counted(client, "agreed") == before + 120)
    assert shadow(client)["texts"] == before + 120
    assert metric(client, "sentiment_shadow_polarity_difference_sum") == 0


IDS = {"input": [[1, 4, 2]]}
LONG = "it " * (MOST_CHARS // 3) + "it"


@pytest.mark.parametrize(
    ("path", "body", "compared", "unsuited"),
    [
        ("/classify", {"inputs": ["love", "", None]}, 1, 0),
        ("/classify", {"inputs": "love. worst.", "split": "sentences"}, 1, 0),
        ("/classify", {"inputs": ["love", "it " * MAX_TOKENS], "overflow": "window"}, 0, 2),
        ("/classify", {"inputs": LONG}, 0, 1),
        ("/classify", {"inputs": {"text": "love", "text_pair": "it"}}, 0, 1),
        ("/explain", {"inputs": "love it"}, 1, 0),
        ("/predict", {"inputs": ["love", "it"]}, 2, 0),
        ("/", {"inputs": "love"}, 1, 0),
        ("/v1/classify", {"input": ["love", "it"]}, 2, 0),
        ("/v1/classify", {"input": "love it", "truncate_prompt_tokens": 3}, 0, 1),
        ("/v1/classify", IDS, 0, 1),
        ("/invocations", {"inputs": "love"}, 1, 0),
        ("/classify/stream", {"text": "love it"}, 100, 0),  # as many lines, in several groups
    ],
)
def test_texts_of_every_way_in_are_compared(
    path: str, body: dict[str, Any], compared: int, unsuited: int, pairs_tried: Process
) -> None:
    """Each answered text once; what the candidate cannot be asked is skipped, with the reason."""
    client = pairs_tried.client
    before, skipped = shadow(client)["texts"], counted(client, "unsuited")
    lines = {"content": f"{json.dumps(body)}\n" * compared, "headers": NDJSON}
    sent: dict[str, Any] = lines if path.endswith("/stream") else {"json": body}
    assert client.post(path, **sent).status_code == 200
    classify(client, "love")  # the texts before it are compared before it
    eventually(lambda: shadow(client)["texts"] >= before + compared + 1)
    assert shadow(client)["texts"] == before + compared + 1
    assert counted(client, "unsuited") == skipped + unsuited


@pytest.fixture(scope="module")
def pairs_tried(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service of a model of pairs, beside which another one with the same weights is tried."""
    folder = tmp_path_factory.mktemp("pairs")
    model, other = (make_bundle(folder / name, name=name) for name in ("tiny", "next"))
    for bundle in (model, other):
        write_manifest(bundle, name=bundle.name, text_pairs=True)
    flags = ("--runners", "1", "--threads", "1", "--max-batch-tokens", "512")
    with Process("--model", str(model), "--shadow", str(other), *ALL, *flags) as process:
        eventually(lambda: "is tried" in shadow(process.client)["summary"])
        yield process


@pytest.mark.parametrize(("share", "least", "most"), [(0, 0, 0), (0.5, 60, 140)])
def test_the_share_says_how_many_texts_go_to_the_candidate(
    serve: Serve, candidate: Path, share: float, least: int, most: int
) -> None:
    """Each text is drawn by itself; those that are not drawn are not said to be skipped."""
    client = serve(shadow=candidate, shadow_share=share)
    eventually(lambda: "is tried" in shadow(client)["summary"])
    classify(client, ["love"] * 200)
    eventually(lambda: least <= shadow(client)["texts"] <= most)
    assert shadow(client)["skipped"] == 0


def test_a_slow_candidate_is_in_nobodys_way(start: Start, tmp_path: Path) -> None:
    """Requests are answered, a bounded number of texts waits, and the others are skipped.

    The service ends in time, and the candidate with it, although it has texts to classify.
    """
    slow = make_bundle(tmp_path / "slow", name="next", additions=20_000)
    process = start("--shadow", str(slow), *ALL)
    eventually(lambda: "is tried" in shadow(process.client)["summary"])
    (child,) = process.children()
    memory = process.memory_bytes()
    for _ in range(30):
        assert classify(process.client, ["love it " * 500] * 100).count("positive") == 100
    assert counted(process.client, "busy") > 2_400
    assert process.memory_bytes() < memory + 50_000_000
    assert "love" not in process.terminate()
    eventually(lambda: not runs(child))


def test_the_candidate_stands_still_while_a_request_is_classified(
    serve: Serve, gate: Gate, pool: ThreadPoolExecutor, candidate: Path
) -> None:
    """Its process is stopped, even while it loads, and goes on when no request is left."""
    client = serve(shadow=candidate, shadow_share=1)

    def state() -> str:
        threads = Path("/proc/self/task").iterdir()
        pids = [pid for thread in threads for pid in (thread / "children").read_text().split()]
        (child,) = [
            pid for pid in pids if str(candidate) in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        return state_of(int(child))

    gate.close()
    first, second = (pool.submit(classify, client, text) for text in ("love", "it"))
    assert gate.reached.wait(30)
    eventually(lambda: state() == "T")
    gate.open.set()
    assert (first.result(30), second.result(30)) == (["positive"], ["neutral"])
    eventually(lambda: shadow(client)["texts"] == 2)
    eventually(lambda: state() == "S")


def test_a_candidate_that_ends_harms_nothing(tried: Process) -> None:
    """The log and /info say that it ended. It is not promoted; a reload tries it again."""
    for ending in (signal.SIGKILL, signal.SIGTERM):
        (child,) = tried.children()
        os.kill(child, ending)
        eventually(lambda: "not tried any more" in shadow(tried.client)["summary"])
        assert classify(tried.client, TEXTS)[0] == "positive"
        assert f"its process ended ({ending.name}" in tried.read_until("no candidate is tried")
        assert tried.client.get("/health/ready").status_code == 200
        assert promote(tried.client).status_code == 503
        assert reload(tried.client).status_code == 200
        classify(tried.client, TEXTS)
        eventually(lambda: shadow(tried.client)["texts"] == len(TEXTS))


def test_texts_that_fail_at_the_candidate_are_counted(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are compared, and the model's answers are as without it."""
    monkeypatch.setitem(WORDS, "worst", [float("nan"), 0, 0])
    process = start("--shadow", str(make_bundle(tmp_path / "nan", name="next")), *ALL)
    assert classify(process.client, TEXTS * 3).count("negative") == 3
    eventually(lambda: shadow(process.client)["texts"] == 12)
    assert counted(process.client, "failed") == shadow(process.client)["skipped"] == 3


def test_texts_of_another_model_are_not_compared(
    start: Start, candidate: Path, tmp_path: Path
) -> None:
    """The candidate is tried beside the first model, also after a reload of the other one.

    A reload of the first model begins another comparison, at 0: what was counted of the old one
    says nothing of the new one.
    """
    bundle, other = (make_bundle(tmp_path / name, name=name) for name in ("tiny", "other"))
    flags = ("--model", str(other), "--shadow", str(candidate), *ALL)
    process = start(*flags, "--admin-keys", "admin-key-1", bundle=bundle)
    for number in (1, 2):
        classify(process.client, ["love"] * 3, model="other")
        classify(process.client, "love")
        eventually(lambda number=number: shadow(process.client)["texts"] == number)  # type: ignore[misc]
        assert reload(process.client, "other").status_code == 200
    assert len(process.children()) == 1
    release(bundle, "fedcba9")
    assert reload(process.client).status_code == 200
    assert shadow(process.client)["texts"] == 0
    classify(process.client, TEXTS[:2])
    eventually(lambda: shadow(process.client)["texts"] == 2)
    eventually(lambda: len(process.children()) == 1)  # the old one ends meanwhile


def test_a_promoted_candidate_is_the_model(tried: Process, candidate: Path) -> None:
    """It answers under the model's name, no candidate is left, and a reload loads it again.

    Under load, nothing fails meanwhile: every answer is the old model's or the new one's. The log
    says which directory each of them read.
    """
    digest = sha256(candidate / MANIFEST)
    clients = (["love"], ["love it"], ["love it"] * 100, ["love " * 500] * 30)

    def label_of(document: Any) -> str:
        (label,) = {result["label"] for result in document["results"]}
        return str(label)

    with constant_load(tried.url, clients, label_of) as seen:
        eventually(lambda: seen["positive"] > 50)
        assert promote(tried.client).json() == {"status": "promoted", "digest": digest}
        eventually(lambda: seen["negative"] > 50)
    assert set(seen) == {"positive", "negative"}
    assert classify(tried.client, "love", model="tiny") == ["negative"]
    info = tried.client.get("/info").json()
    assert (info["digest"], info["shadow"]) == (digest, None)
    eventually(lambda: not tried.children())
    again = promote(tried.client)
    assert (again.status_code, again.json()["code"]) == (404, "not_found")
    assert "no candidate is tried beside tiny" in again.json()["detail"]
    tried.read_until(f"tiny was loaded again from {candidate}: ")
    assert reload(tried.client).json()["digest"] == digest
    tried.read_until(f"tiny was loaded again from {candidate}: ")
    assert tried.client.get("/models").json()["models"][0]["name"] == "tiny"
    tried.terminate()


def test_a_promotion_needs_an_admin_key_and_a_candidate(
    serve: Serve, bundle: Path, candidate: Path, tmp_path: Path
) -> None:
    """No key or a client's: 401. Another model than the first, or an unknown one: 404."""
    other = make_bundle(tmp_path / "other", name="other")
    keys = {"api_keys": "client-key-1", "admin_keys": "admin-key-1"}
    client = serve(model=(bundle, other), shadow=candidate, **keys)
    for headers in ({}, {"authorization": "Bearer client-key-1"}):
        assert client.post("/models/tiny/promote", headers=headers).status_code == 401
    for name, code in (("other", "not_found"), ("none", "model_not_found")):
        assert (promote(client, name).status_code, promote(client, name).json()["code"]) == (
            404,
            code,
        )
    assert promote(serve(admin_keys="admin-key-1")).json()["code"] == "not_found"


def test_only_what_was_tried_is_promoted(tried: Process, candidate: Path) -> None:
    """A candidate that was changed meanwhile is refused; the old model stays, the trial goes on."""
    write_manifest(candidate, labels=LABELS[::-1], max_tokens=15)
    assert promote(tried.client).status_code == 422
    tried.read_until("not what was tried")
    (candidate / MANIFEST).unlink()
    assert promote(tried.client).status_code == 422
    tried.read_until("it has no manifest.json")
    assert classify(tried.client, "love") == ["positive"]
    eventually(lambda: shadow(tried.client)["texts"] == 1)


@pytest.mark.parametrize("damage", ["labels", "graph", "gone"])
def test_a_candidate_that_cannot_be_loaded_is_not_promoted(
    serve: Serve, candidate: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The service answers without it; its log has the reason, and a promotion gets 503."""
    match damage:
        case "labels":
            write_manifest(candidate, labels=["bad", "so-so", "good"])
            config = {"id2label": dict(enumerate(["bad", "so-so", "good"])), "pad_token_id": 0}
            (candidate / "config.json").write_text(json.dumps(config))
            write_manifest(candidate, name="next", labels=["bad", "so-so", "good"])
        case "graph":
            (candidate / "onnx/model.onnx").write_bytes(b"damaged")
        case "gone":
            (candidate / MANIFEST).unlink()
    client = serve(shadow=candidate, admin_keys="admin-key-1")
    reason = {"labels": "its labels are bad", "graph": "damaged", "gone": "No such file"}[damage]
    eventually(lambda: reason in caplog.text)
    assert promote(client).status_code == 503
    assert classify(client, "love") == ["positive"]


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("none", "there is no directory"),
        ("same", "is the bundle that is served; give another one to try"),
        ("other", "must have the labels of the model, which are negative, neutral, positive"),
    ],
)
def test_a_wrong_candidate_ends_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    words: str,
) -> None:
    """One line says what is wrong; the exit code is 1. ``doctor`` says the same."""
    bundle = make_bundle(tmp_path / "same")
    make_bundle(tmp_path / "other", outputs=2, labels=["bad", "good"])
    monkeypatch.setenv("SENTIMENT_MODEL", str(bundle))
    monkeypatch.setenv("SENTIMENT_SHADOW", str(tmp_path / flag))
    for command in (["serve", "--port", "0"], ["doctor"]):
        assert main(command) == 1
        (line,) = [line for line in "".join(capsys.readouterr()).splitlines() if words in line]
        assert str(tmp_path / flag) in line


def test_a_candidate_ends_with_a_service_that_is_killed(start: Start, candidate: Path) -> None:
    """Also one that was stopped as soon as it was started, where orphans are not sent SIGHUP.

    So it is in a container, whose first process adopts them and has started the service.
    """
    flags = ("--shadow", str(candidate), *ALL, "--admin-keys", "admin-key-1")
    process = start(*flags, command=SLOW_COMMAND)
    adopt = ctypes.CDLL(None).prctl
    former = process.children()
    with constant_load(process.url, [["love"]] * 4, lambda _: "answered") as seen:
        eventually(lambda: seen["answered"] > 10)
        assert reload(process.client).status_code == 200
        eventually(lambda: len({*process.children()} - {*former}) == 1)
        (child,) = {*process.children()} - {*former}
        seen.clear()
        eventually(lambda: seen["answered"] > 10)
        adopt(PR_SET_CHILD_SUBREAPER, 1)
        process.signal(signal.SIGKILL)
    try:
        eventually(lambda: not runs(child))
    finally:
        adopt(PR_SET_CHILD_SUBREAPER, 0)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_the_candidate_yields_the_cpus_and_the_memory(pairs_tried: Process) -> None:
    """It has the priority of idle work, and is the first to end if the memory runs out."""
    (child,) = pairs_tried.children()
    assert os.sched_getscheduler(child) == os.SCHED_IDLE
    assert Path(f"/proc/{child}/oom_score_adj").read_text().strip() == "1000"
    assert os.sched_getscheduler(pairs_tried.pid) == os.SCHED_OTHER
