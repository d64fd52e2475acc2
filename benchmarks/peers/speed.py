"""Compares our service with other projects' servers: same checkpoint, texts and connections."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sentiment_service.cli.load_generator import Load, Outcome, run

from benchmarks.peers.installed import PEERS, Peer, PeerError, serving
from benchmarks.service import free_port
from benchmarks.subject import Goal, Subject
from benchmarks.tables import Row

CONNECTIONS = 32
SECONDS, WARM_UP_SECONDS = 20.0, 6.0  # torch in fp32 takes 8 s for a batch of 32
LEAST = 1.8
# Peers that compute in fp32, and those that compute in int8.
EXACT = tuple(peer for peer in PEERS if peer.name.endswith("fp32"))
FAST = tuple(peer for peer in PEERS if peer.name.endswith("int8"))


def measure(
    subjects: Sequence[Subject], checkpoint: Path, home: Path, rounds: int
) -> Iterator[Row | Goal]:
    """Measure each peer once, then the best of each precision in turns with our service."""
    int8, fp32 = subjects
    rates: dict[str, float] = {}
    for peer in (*EXACT, *FAST):
        try:
            with serving(peer, home, checkpoint, free_port()) as port:
                outcome = _load(peer, port, int8.texts)
        except PeerError as error:
            yield {"server": peer.name, "texts/s": float("nan"), "remark": str(error)}
        else:
            rates[peer.name] = outcome.ok_per_second()
            yield _row(peer, outcome)
    for subject, peers in ((fp32, EXACT), (int8, PEERS)):
        best = max((p for p in peers if p.name in rates), key=lambda p: rates[p.name])
        ratios, ours, theirs = [], [], []
        with serving(best, home, checkpoint, free_port()) as port, subject.serve() as service:
            ask = subject.load(service, CONNECTIONS, wanted=int8.texts)
            load = replace(ask, seconds=SECONDS, warm_up_seconds=WARM_UP_SECONDS)
            for _ in range(rounds):
                theirs.append(_load(best, port, int8.texts).ok_per_second())
                ours.append(run(load).ok_per_second())
                ratios.append(ours[-1] / theirs[-1])
        yield {"server": f"ours, {subject.name}", "texts/s": statistics.median(ours)}
        name = f"{subject.name} ÷ best peer ({best.name})"
        remark = f"peer: {statistics.median(theirs):.0f} texts/s"
        yield Goal.of_rounds(name, ratios, LEAST, remark=remark)


def _load(peer: Peer, port: int, texts: Sequence[str]) -> Outcome:
    bodies = [peer.body(text) for text in texts]
    url = f"http://127.0.0.1:{port}{peer.path}"
    return run(Load(url, bodies, CONNECTIONS, SECONDS, WARM_UP_SECONDS))


def _row(peer: Peer, outcome: Outcome) -> Row:
    failed = sum(len(found) for status, found in outcome.latencies.items() if status != "200")
    remark = f"{failed} failed" if failed else "" if outcome.ok() else "nothing ended in the time"
    return {
        "server": peer.name,
        "texts/s": outcome.ok_per_second(),
        "p50 ms": outcome.percentile_ms(50),
        "p99 ms": outcome.percentile_ms(99),
        "remark": remark,
    }
