"""Counts answers by route and status, faults by outcome, and failures."""

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field

from checks.soak.calls.call import Call
from checks.soak.faults.outcomes import CORRECT, KILLED, WRONG
from checks.soak.wire import Answer

KEPT = 50  # examples of each kind of failure


@dataclass
class Tally:
    """The counts. ``failures`` counts by kind what makes the soak fail."""

    requests: dict[str, Counter[str]] = field(default_factory=dict)
    faults: dict[str, Counter[str]] = field(default_factory=dict)
    texts: int = 0  # the number of texts whose results were compared
    failures: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def answered(self, call: Call, answer: Answer, allowed: Set[int]) -> None:
        """Count an answer. With 200, it is checked; other statuses must be ``allowed``."""
        status = 504 if answer.late else answer.status
        self._count(self.requests, call.route, str(status))
        if status == 200:
            self.checked(call, answer)
        elif status not in allowed:
            self.failed("unexplained statuses", f"{call.route}: {status} {answer.body!r}")

    def checked(self, call: Call, answer: Answer) -> bool:
        """Compare an answer with 200; returns whether it is right."""
        try:
            sound = call.sound(answer)
        except (KeyError, ValueError, TypeError):  # the answer has another structure
            sound = False
        self.texts += call.texts
        if not sound:
            self.failed("wrong answers", f"{call.route}: {answer.body!r} to {call.request!r}")
        return sound

    def outcome(self, call: Call, answer: Answer) -> str:
        """What the client of a fault saw, if this is its answer; with 200, it is checked."""
        if answer.late:
            return "504"
        if answer.status != 200:
            return str(answer.status)
        return CORRECT if self.checked(call, answer) else WRONG

    def lost(self, call: Call, reason: str) -> None:
        """Count an answer that did not come."""
        self._count(self.requests, call.route, "none")
        self.failed("lost answers", f"{call.route}: {reason}")

    def killed(self, call: Call) -> None:
        """Count an answer that did not come because the soak had killed the worker."""
        self._count(self.requests, call.route, KILLED)

    def fault(self, kind: str, outcome: str, expected: Set[str], why: str = "") -> None:
        """Count a fault and what its client saw, for this reason."""
        self._count(self.faults, kind, outcome)
        if outcome not in expected:
            self.failed("unexpected outcomes of faults", f"{kind}: {outcome} {why}")

    def failed(self, kind: str, example: str) -> None:
        """Count a failure and keep the example."""
        self.failures[kind] += 1
        if self.failures[kind] <= KEPT:
            self.examples.append(f"{kind}: {example[:8_000]}")

    def _count(self, counters: dict[str, Counter[str]], name: str, what: str) -> None:
        counters.setdefault(name, Counter())[what] += 1
