"""Our service beside other projects' servers: same checkpoint, texts, connections and run."""

import socket
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.load import Load, run
from benchmarks.peer_servers import PEERS, Peer, PeerError, serving
from benchmarks.serving import Goal, Row, Subject

CONNECTIONS = 32
SECONDS, WARM_UP_SECONDS = 10.0, 4.0
LEAST = 1.8
# Peers by the precision of what they compute: fp32 exactly, or whatever is fastest.
EXACT = tuple(peer for peer in PEERS if peer.name.endswith("fp32"))
FAST = tuple(peer for peer in PEERS if peer.name.endswith("int8"))


def measure(
    subjects: Sequence[Subject], checkpoint: Path, home: Path, rounds: int
) -> Iterator[Row | Goal]:
    """Each peer once, then the best of each precision in turns with ours."""
    int8, fp32 = subjects
    rates: dict[str, float] = {}
    for peer in (*EXACT, *FAST):
        try:
            rates[peer.name], row = _peer(peer, int8.texts, checkpoint, home)
        except PeerError as error:
            row = {"server": peer.name, "texts/s": float("nan"), "remark": str(error)}
        yield row
    for subject, peers in ((fp32, EXACT), (int8, PEERS)):
        best = max((p for p in peers if p.name in rates), key=lambda p: rates[p.name])
        ratios, ours, theirs = [], [], []
        for _ in range(rounds):
            theirs.append(_peer(best, int8.texts, checkpoint, home)[0])
            with subject.serve() as service:
                load = subject.load(
                    service,
                    CONNECTIONS,
                    wanted=int8.texts,
                    seconds=SECONDS,
                    warm_up_seconds=WARM_UP_SECONDS,
                )
                ours.append(run(load).ok_per_second())
            ratios.append(ours[-1] / theirs[-1])
        yield {"server": f"ours, {subject.name}", "texts/s": statistics.median(ours)}
        spread = f"{statistics.median(theirs):.0f} texts/s; {min(ratios):.2f} to {max(ratios):.2f}"
        name = f"{subject.name} ÷ best peer ({best.name})"
        yield Goal(name, statistics.median(ratios), LEAST, remark=spread)


def _peer(peer: Peer, texts: Sequence[str], checkpoint: Path, home: Path) -> tuple[float, Row]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with serving(peer, home, checkpoint, port):
        bodies = [peer.body(text) for text in texts]
        outcome = run(Load(port, peer.path, bodies, CONNECTIONS, SECONDS, WARM_UP_SECONDS))
    failed = sum(len(found) for status, found in outcome.latencies.items() if status != "200")
    row = {
        "server": peer.name,
        "texts/s": outcome.ok_per_second(),
        "p50 ms": outcome.percentile_ms(50),
        "p99 ms": outcome.percentile_ms(99),
        "remark": f"{failed} failed" if failed else "",
    }
    return outcome.ok_per_second(), row
