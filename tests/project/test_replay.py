"""The replay finds every change of an answer, and tolerates only what it says."""

import sys
from pathlib import Path

import pytest

from benchmarks.replay.__main__ import main
from benchmarks.replay.comparison import differences
from benchmarks.replay.recording import LONG, Record, read, write

BODY = '{"label": "positive", "score": 0.95}'


def _record(
    body: str = BODY,
    *,
    status: str = "HTTP/1.1 200 OK",
    headers: tuple[str, ...] = ("content-type: application/json", "x-a: 1"),
    connection: str = "kept",
) -> Record:
    lengthened = [*headers, f"content-length: {len(body)}"]
    answer = {"status": status, "headers": lengthened, "body": body}
    return {"answers": [answer], "connection": connection}  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("after", "what"),
    [
        (_record(status="HTTP/1.1 201 Created"), "status"),
        (_record(BODY.replace("positive", "negative")), "body"),
        (_record(BODY.replace(": ", ":")), "body"),
        (_record(BODY.replace("0.95", "0.96")), "body"),
        (_record(headers=("content-type: application/json", "x-a: 2")), "header"),
        (_record(headers=("x-a: 1", "content-type: application/json")), "header"),
        (_record(headers=("content-type: application/json",)), "header"),
        (_record(connection="closed"), "connection"),
        ({"answers": [], "connection": "kept"}, "answers"),
    ],
)
@pytest.mark.parametrize("tolerance", [0.0, 1e-4])
def test_a_changed_answer_is_found(after: Record, what: str, tolerance: float) -> None:
    """A change of status, body, headers, their order, or the connection, is described."""
    (found,) = differences({"a": _record()}, {"a": after}, tolerance=tolerance)
    assert found.startswith(f"a\n  {what}")


@pytest.mark.parametrize("padding", ["", "x" * LONG])
def test_the_tolerance_is_for_fractions(tmp_path: Path, padding: str) -> None:
    """Nearly the same score passes with a tolerance only, in a body kept as a digest as well."""
    body = f'{BODY[:-1]}, "padding": "{padding}"}}'
    close = {"a": _record(body.replace("0.95", "0.95001"))}
    write(tmp_path / "recording", {"a": _record(body)})
    before = read(tmp_path / "recording")
    assert list(differences(before, close, tolerance=1e-4)) == []
    assert len(list(differences(before, close))) == 1


def test_a_request_that_only_one_recording_has_is_found() -> None:
    """A new request must be recorded."""
    (found,) = differences({}, {"a": _record()})
    assert found == "a\n  is only in the second"


def test_the_command_compares_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 0 for the same answers and 1 for others, which are printed."""
    before, after = tmp_path / "before", tmp_path / "after"
    write(before, {"a": _record(), "b": _record()})
    write(after, {"a": _record(), "b": _record(BODY.replace("0.95", "0.90"))})
    for other, code in ((before, 0), (after, 1)):
        monkeypatch.setattr(sys, "argv", ["replay", "compare", str(before), str(other)])
        assert main() == code
    assert "b\n  body:" in capsys.readouterr().out
