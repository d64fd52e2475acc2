"""What ``sentiment doctor`` finds, of this machine and of a running service."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. ``cure`` says what helps if there is a problem."""

    check: str
    ok: bool
    found: str
    cure: str = ""

    def line(self) -> str:
        cure = f"; {self.cure}" if self.cure else ""
        line = " ".join(f"{self.check}: {self.found}{cure}".split())
        # Who knows what a proxy says: a terminal would obey control characters.
        shown = "".join(each if each.isprintable() else "?" for each in line)
        return f"{'ok' if self.ok else 'PROBLEM':<9}{shown}"


def report(findings: Iterable[Finding]) -> int:
    """Print each finding as soon as it is known. The exit code is 1 if there is a problem."""
    code = 0
    for finding in findings:
        print(finding.line(), flush=True)
        code |= not finding.ok
    return code
