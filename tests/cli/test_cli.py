"""The command `sentiment classify`, and what all commands have in common."""

import importlib.metadata
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from sentiment_service.cli.command import _parser, main
from sentiment_service.settings.settings import Settings, flag
from sentiment_service.settings.sources import GROUPS, load_settings

from tests.support.serving import COMMAND, ROOT, Program, environment, run_program, terminal

Pipes = tuple[Program, IO[bytes], IO[bytes], IO[bytes]]


def _classify(
    bundle: Path, *arguments: str, start: str = 'exec "$@"', **options: Any
) -> "subprocess.CompletedProcess[bytes]":
    usual: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    usual |= {"env": environment()} | ({} if "stdin" in options else {"input": b""})
    command = ["sh", "-c", start, "sh", *COMMAND, "classify", "--model", str(bundle), *arguments]
    done: subprocess.CompletedProcess[bytes]
    done = subprocess.run(command, cwd=ROOT, timeout=60, **(usual | options))
    return done


@contextmanager
def _answering(bundle: Path) -> Iterator[Pipes]:
    """The command with its three pipes, after it has answered its first line and waits for more."""
    command = [*COMMAND, "classify", "--model", str(bundle)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with Program(command, cwd=ROOT, env=environment(), **pipes) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(b"love\n" * 1_000)
        process.stdin.flush()
        assert process.stdout.readline() == b"positive\t0.9756\tlove\n"
        yield process, process.stdin, process.stdout, process.stderr


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_file_is_classified_with_standard_files_closed(
    bundle: Path, tmp_path: Path, closed: str
) -> None:
    """As some schedulers start commands; the results are in the file."""
    given, made = tmp_path / "texts.txt", tmp_path / "results.jsonl"
    given.write_text("love\n")
    files = ("--input", str(given), "--output", str(made))
    assert _classify(bundle, *files, start=f'exec "$@" {closed}').returncode == 0
    assert json.loads(made.read_text())["label"] == "positive"


def test_results_for_a_closed_standard_output_are_not_lost_in_silence(bundle: Path) -> None:
    """The command fails and says what to do."""
    done = _classify(bundle, "love", start='exec "$@" >&-')
    assert done.returncode == 1
    assert done.stderr == (
        b"sentiment: standard output is closed; give --output FILE for the results\n"
    )


def test_texts_as_arguments(bundle: Path) -> None:
    """Each text gives a line with label, score and text, in the order of the arguments."""
    done = _classify(bundle, "I love this", "worst\tof\nall", "3pm")
    assert done.stdout.decode().splitlines() == [
        "positive\t0.9465\tI love this",
        "negative\t0.9465\tworst of all",
        "neutral\t0.4519\t3pm",
    ]
    assert (done.returncode, done.stderr) == (0, b"")


def test_bad_lines_are_answered_in_their_place(bundle: Path) -> None:
    """Empty, NUL, not UTF-8 and too long give an error line each; other lines are classified, the
    first without its byte order mark."""
    lines = b"\xef\xbb\xbflove\n\nnot \xff UTF-8\r\nNUL \0\ntoo long a line\nworst"
    done = _classify(bundle, input=lines, env=environment(SENTIMENT_MAX_TEXT_CHARS="12"))
    assert done.stdout.splitlines() == [
        b"positive\t0.9756\tlove",
        b"error\tempty_text\t",
        b"error\tinvalid_request\tnot \xff UTF-8",
        b"error\tinvalid_request\tNUL \0",
        b"error\ttext_too_long\ttoo long a lin",
        b"negative\t0.9756\tworst",
    ]
    assert (done.returncode, done.stderr) == (0, b"")


def test_nothing_is_left_in_the_home_directory(bundle: Path, tmp_path: Path) -> None:
    """ONNX Runtime's telemetry, which would write there, is off."""
    done = _classify(bundle, "love", env=environment(HOME=str(tmp_path)))
    assert done.returncode == 0
    assert not list(tmp_path.iterdir())


def test_a_reader_that_stops_ends_it_quietly(bundle: Path) -> None:
    """With `| head`, the command ends at once, with exit code 0 and no error message."""
    with _answering(bundle) as (process, given, answers, errors):
        answers.close()
        given.write(b"love\n" * 10_000)
        given.close()
        assert errors.read() == b""
        assert process.wait(30) == 0


def test_a_full_disk_is_one_line(bundle: Path) -> None:
    """A write error is a one-line message and exit code 1, without a traceback."""
    with Path("/dev/full").open("wb") as full:
        done = _classify(bundle, "love", stdout=full)
    assert done.returncode == 1
    assert done.stderr == b"sentiment: No space left on device\n"


def test_ctrl_c_ends_with_130_and_no_traceback(bundle: Path) -> None:
    """Ctrl-C while it waits for more input."""
    with _answering(bundle) as (process, _, _, errors):
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert errors.read() == b""


@pytest.mark.parametrize(
    ("package", "command"),
    [("service", "serve"), ("service", "doctor"), ("export", "describe")],
)
def test_ctrl_c_during_the_imports_is_quiet(package: str, command: str) -> None:
    """A slow machine needs seconds for them. The exit code is that of a later Ctrl-C."""
    code = f"""
import builtins, os, signal, sys
from sentiment_{package}.__main__ import main
importer = builtins.__import__
def interrupted(name, *rest):
    if name == "pydantic":
        os.kill(os.getpid(), signal.SIGINT)
    return importer(name, *rest)
builtins.__import__ = interrupted
sys.exit(main())
"""
    done = run_program(sys.executable, "-c", code, command)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("kind", [ImportError, SystemError])
def test_ctrl_c_that_a_package_makes_another_error_of_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: type[Exception]
) -> None:
    """Packages written in C do so if it comes while they load. No package is broken then."""

    def interrupted(*_: object) -> None:
        part = kind("initialization failed")
        part.__cause__ = KeyboardInterrupt()
        raise ImportError("a part of the package is missing") from part

    monkeypatch.setattr("sentiment_service.cli.doctor.examine", interrupted)
    assert main(["doctor"]) == 130
    assert capfd.readouterr().err == ""


def test_a_text_like_an_option_comes_after_two_hyphens(
    bundle: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without them, the line says so."""
    with pytest.raises(SystemExit) as exited:
        main(["classify", "--model", str(bundle), "-_-"])
    assert exited.value.code == 2
    assert "'-_-'; what begins with - and is no option comes after --;" in capfd.readouterr().err
    assert main(["classify", "--model", str(bundle), "--", "-_-", "--model", "love"]) == 0
    assert [line.split("\t")[2] for line in capfd.readouterr().out.splitlines()] == [
        *("-_-", "--model", "love")
    ]


@pytest.mark.parametrize(
    ("address", "reason"),
    [("192.0.2.1", "Cannot assign requested address"), ("nohost.invalid", "")],
)
def test_an_address_of_another_machine_is_one_line(
    address: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what --host may be."""
    assert main(["serve", "--host", address, "--log-format", "human"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"sentiment: cannot listen on {address} port 8000: {reason}")
    assert "--host is an address of this machine" in last


@pytest.mark.parametrize(("given", "other"), [("cert", "key"), ("key", "cert")])
def test_one_of_two_files_for_tls_is_wrong_usage(
    given: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the flag that was given, and the one that is missing."""
    assert main(["serve", f"--tls-{given}", "x", "--log-format", "human"]) == 2
    said = f"--tls-{given}: a certificate and its key need each other: give --tls-{other}, too"
    assert capsys.readouterr().err == f"sentiment: {said}\n"


def test_a_terminal_without_texts_is_wrong_usage(bundle: Path) -> None:
    """Without texts at a terminal, the command explains itself and does not wait for input."""
    outside, inside = terminal()
    done = _classify(bundle, stdin=inside)
    os.close(outside)
    os.close(inside)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["serve", "classify"])
def test_a_bad_variable_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """One line that names the variable, exit code 2."""
    monkeypatch.setenv("SENTIMENT_THREADS", "all")
    monkeypatch.setenv("SENTIMENT_LOG_FORMAT", "human")
    assert main([command]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sentiment: SENTIMENT_THREADS: ")


def test_help_lists_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    """`sentiment serve --help` shows each flag and its default; the usual ones come first."""
    with pytest.raises(SystemExit) as exited:
        main(["serve", "--help"])
    assert exited.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, field in Settings.model_fields.items():
        assert flag(name) in shown
        default = "none" if field.default in ("", (), None) else field.default
        default = "off" if default is False else default
        assert "[default: " in (field.description or "") or f"[default: {default}]" in shown
    order = [flag(name) for names in GROUPS.values() for name in names.split()]
    options = shown[shown.index("options:") :]
    places = [options.find(f" {one} ") for one in order if f" {one} " in options]
    assert len(places) >= len(Settings.model_fields)
    assert places == sorted(places)
    assert shown.index("--deadline-ms MS") < shown.index("--precision") < shown.index("--runners N")


def test_the_examples_of_help_are_valid(capsys: pytest.CaptureFixture[str]) -> None:
    """Each example that `sentiment --help` shows is accepted as it is written."""
    with pytest.raises(SystemExit):
        main(["--help"])
    _, examples = capsys.readouterr().out.split("examples:\n")
    commands = [shlex.split(line)[1:] for line in examples.splitlines() if "COMMAND" not in line]
    assert [_parser().parse_args(command).command for command in commands] == [
        "serve",
        "classify",
        "classify",
    ]


@pytest.mark.parametrize(
    ("words", "usage", "hint"),
    [
        (["serv"], "usage: sentiment [-h]", "there is no 'serv' (the nearest is serve)"),
        (["serve", "--prot", "80"], "usage: sentiment serve", "(the nearest is --port)"),
        (["classify", "--ouput=x"], "usage: sentiment classify", "(the nearest is --output)"),
        (["doctor", "--served-name", "a"], "usage: sentiment doctor", "no option '--served-name'"),
        (["serve", "model"], "usage: sentiment serve", "there is no argument 'model'"),
        ([], "usage: sentiment [-h]", "see sentiment --help"),
    ],
)
def test_a_wrong_word_gets_the_nearest_one(
    capsys: pytest.CaptureFixture[str], words: list[str], usage: str, hint: str
) -> None:
    """Exit code 2, the usage of the command that was meant, and where its help is."""
    with pytest.raises(SystemExit) as exited:
        main(words)
    assert exited.value.code == 2
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith(usage)
    assert hint in last
    assert last.endswith("--help")


def test_help_offers_only_what_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """`classify` takes one model, so its help does not offer several; it keeps exports, too."""
    with pytest.raises(SystemExit):
        main(["classify", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "repeat the option" not in shown
    assert "--cache-dir DIR directory that keeps exported models" in shown


def test_each_option_of_the_service_has_a_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As help says: it is named like the option, but for the one that help names with its own."""
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    help_text = capsys.readouterr().out
    options = set(re.findall(r"^  (--[a-z-]+)", help_text, re.MULTILINE))
    assert options - set(map(flag, Settings.model_fields)) == {"--single-label"}
    shown = " ".join(help_text.split())
    assert "SENTIMENT_MULTI_LABEL=off is --single-label" in shown
    monkeypatch.setenv("SENTIMENT_MULTI_LABEL", "off")
    assert load_settings({}).multi_label is False


@pytest.mark.parametrize("command", ["serve", "classify"])
def test_an_unknown_variable_is_warned_of(command: str, tmp_path: Path) -> None:
    """Each command names the variable and the nearest setting, and goes on.

    Here it goes on to a directory without a bundle: a failure is one line and exit code 1.
    """
    words = [command, "--model", str(tmp_path)]
    done = run_program(*COMMAND, *words, SENTIMENT_MAX_TEXT="5", SENTIMENT_LOG_FORMAT="human")
    *_, warning, failure = done.stderr.splitlines()
    says = "SENTIMENT_MAX_TEXT is not a setting (the nearest is SENTIMENT_MAX_TEXTS)"
    assert says in warning
    assert failure.startswith(f"sentiment: {tmp_path} is not a bundle")
    assert done.returncode == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the version of the installed package."""
    with pytest.raises(SystemExit) as exited:
        main(["--version"])
    assert exited.value.code == 0
    version = importlib.metadata.version("sentiment-service")
    assert capsys.readouterr().out == f"sentiment {version}\n"
