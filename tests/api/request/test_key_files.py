"""Keys from files, as orchestrators mount secrets; SIGHUP reads them again."""

import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sentiment_service.settings.credentials import Credentials
from sentiment_service.settings.settings import Settings
from sentiment_service.settings.sources import load_settings, read_credentials

from tests.conftest import Start
from tests.support.raw_http import connect
from tests.support.serving import COMMAND, Process, eventually

BOTH = pytest.mark.parametrize("workers", [1, 2])


KEYS = ("first-key-1", "second-key-2")
KEYS_OF_ADMINS: Any = "admin-key-1,admin-key-2,admin-key-3"
OWN_KEY: Any = KEYS[0]


def _head(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _status(process: Process, key: str) -> int:
    return process.client.get("/info", headers=_head(key)).status_code


def _fresh(process: Process, key: str) -> int:
    """The status on a new connection, which goes to the worker with the fewest."""
    return httpx2.get(f"{process.url}/info", headers=_head(key)).status_code


def _all_ready(workers: list[dict[str, Any]]) -> bool:
    return {worker["stage"] for worker in workers} == {"ready"}


@BOTH
def test_sighup_reads_the_keys_again(start: Start, tmp_path: Path, workers: int) -> None:
    """All workers take new keys and forget old ones. A file without keys does not open the service.

    Keys that were given without a file stay. The log names the setting, the file and the fault.
    """
    file = tmp_path / "keys"
    file.write_text("first-key-1\n\nsecond-key-2\n", encoding="utf-8")
    flags = ("--api-keys-file", str(file), "--api-keys", "own-key-9", "--workers", str(workers))
    process = start(*flags)
    assert [_status(process, key) for key in ("first-key-1", "second-key-2", "own-key-9")] == [
        *(200, 200, 200)
    ]
    assert _status(process, "first-key-1,second-key-2") == 401
    file.write_text("third-key-3", encoding="utf-8")
    process.signal(signal.SIGHUP)
    eventually(lambda: all(_status(process, "third-key-3") == 200 for _ in range(8)))
    assert [_status(process, key) for key in ("first-key-1", "own-key-9")] == [401, 200]
    file.write_text("\n", encoding="utf-8")
    process.signal(signal.SIGHUP)
    wrong = f"stay as they are: --api-keys-file {file}: give at least one key"
    assert "third-key" not in process.read_until(wrong)
    assert [_status(process, key) for key in ("third-key-3", "wrong-key-4")] == [200, 401]


def _keys(name: str, path: Path) -> tuple[bytes, ...]:
    """The digests of the keys that a file or directory gives."""
    flags = {f"{name}_file": str(path)}
    keys: tuple[bytes, ...] = getattr(read_credentials(load_settings(flags), flags), name)
    return keys


def test_a_mounted_secret_gives_keys(tmp_path: Path) -> None:
    """Each file of a directory has keys, but for hidden ones, which must be named themselves.

    Directories in it, such as lost+found of a volume, are left out.

    A wrong line is named with its file. A byte order mark, which Windows writes, is ignored.
    """
    version = tmp_path / "..2026_11_25"
    version.mkdir()
    for name, keys in (("one", "admin-key-1"), ("others", "admin-key-2\nadmin-key-3\n")):
        (version / name).write_text(keys, encoding="utf-8")
        (tmp_path / name).symlink_to(version / name)
    (tmp_path / ".old").write_text("admin-key-0", encoding="utf-8")
    (tmp_path / "lost+found").mkdir()
    assert _keys("admin_keys", tmp_path) == Settings(admin_keys=KEYS_OF_ADMINS).admin_keys
    (tmp_path / "others").write_text("admin-key-2\n#admin-key-3\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^--admin-keys-file: line 2 of others: it begins .*"):
        _keys("admin_keys", tmp_path)
    (tmp_path / ".old").write_text("\ufefffirst-key-1\r\n", encoding="utf-8")
    assert _keys("api_keys", tmp_path / ".old") == Settings(api_keys=OWN_KEY).api_keys


def test_metrics_and_log_name_keys_that_have_a_name(start: Start, tmp_path: Path) -> None:
    """Requests count for the name of their key; the keys themselves appear nowhere.

    Two keys may have one name, as while one replaces the other. A key may contain the sign, so a
    whole line is a key, too.
    """
    keys = tmp_path / "keys"
    listed = f"press={KEYS[0]}\npress={KEYS[1]}\nshop=third-key=3\nunnamed-key=\n"
    keys.write_text(listed, encoding="utf-8")
    process = start("--api-keys-file", str(keys), "--rate-limit", "4/hour", "--access-log", "on")
    sent = (*KEYS, "third-key=3", "shop=third-key=3", "unnamed-key=", "press", "wrong-key-1")
    assert [_status(process, key) for key in sent] == [*[200] * 5, 401, 401]
    assert [_status(process, KEYS[0]) for _ in range(4)] == [200, 200, 200, 429]
    scrape = process.client.get("/metrics", headers=_head(KEYS[1])).text
    series = [line for line in scrape.splitlines() if line.startswith("sentiment_key_requests")]
    assert series == [
        'sentiment_key_requests_total{key="press",outcome="ok"} 5.0',
        'sentiment_key_requests_total{key="shop",outcome="ok"} 1.0',
        'sentiment_key_requests_total{key="press",outcome="rate_limited"} 1.0',
    ]
    log = process.terminate()
    assert log.count('"key":"press"') >= 6
    assert not [key for key in sent[:5] if key in scrape or key in log]


def test_metrics_have_at_most_a_hundred_names_of_keys(tmp_path: Path) -> None:
    """Each is a series. Keys with further names count as other."""
    keys = tmp_path / "keys"
    keys.write_text("\n".join(f"name-{n}=long-key-{n}" for n in range(150)), encoding="utf-8")
    names = Credentials.read(Settings(api_keys_file=keys)).key_names
    assert len(names) == 150
    assert len(set(names.values())) == 101
    assert list(names.values()).count("other") == 50


NO_NAME = (
    "it is taken for one key, because a name has at most 64 letters, digits and signs of . _ - and "
    "begins with a letter, and the key after name= has 8 to 256"
)


@pytest.mark.parametrize(
    ("line", "doubted"),
    [
        ("web=abc123", True),
        ("web==abc123", True),
        ("web=long-key-1,shop=abc123", True),
        ("1web=long-key-1", True),
        ("web@shop=long-key-1", True),
        ('"web"=long-key-1', True),
        (f"{'w' * 65}=long-key-1", True),
        ("web=long-key-1", False),
        ("web=long=key-1", False),
        ("c2VjcmV0LWtleQ==", False),
        ("c2VjcmV0LWtleTE=", False),
        ("c+Vj/mV0=WtleTE", False),
    ],
)
def test_a_name_that_is_taken_for_a_part_of_the_key_is_a_doubt(
    tmp_path: Path, line: str, doubted: bool
) -> None:
    """What looks like name=key but is none is a key as a whole, which its line's writer must learn.

    Nothing of the line is shown, which may be a key. Keys that end with the sign, as base64 does,
    are none of these.
    """
    file = tmp_path / "keys"
    file.write_text(f"long-key-0\n{line}\n", encoding="utf-8")
    doubts = Credentials.read(Settings(api_keys_file=file)).doubts
    assert doubts == ((f"--api-keys-file {file}: line 2: {NO_NAME}",) if doubted else ())


@BOTH
def test_doubts_about_keys_are_warnings(start: Start, tmp_path: Path, workers: int) -> None:
    """One at the start, and another when the keys are read again."""
    file = tmp_path / "keys"
    file.write_text("web=abc123", encoding="utf-8")
    process = start("--api-keys-file", str(file), "--workers", str(workers))
    assert process.first_lines.count(NO_NAME) == 1
    assert [_status(process, key) for key in ("abc123", "web=abc123")] == [401, 200]
    process.signal(signal.SIGHUP)
    process.read_until(NO_NAME)


KEY_RULE = "a key must be 8 to 256 printable ASCII characters without spaces"
NO_COMMENTS = "it begins with #, but a file of keys has no comments: remove the line"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no keys can be read there: No such file or directory"),
        ("", "give at least one key"),
        ("\ufeff\n", "give at least one key"),
        ("my secret key", f"line 1: {KEY_RULE}$"),
        ("first-key-1\n\nclé-secrète\n", f"line 3: {KEY_RULE}$"),
        ("first-key-1\n# secret\n", f"line 2: {NO_COMMENTS}$"),
        ("first-key-1\n #disabled-secret\n", f"line 2: {NO_COMMENTS}$"),
    ],
)
@pytest.mark.parametrize("name", ["api_keys_file", "admin_keys_file"])
def test_a_wrong_file_ends_the_start(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    """The error names the setting, line and fault, and neither a key nor what may be one."""
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    flags = {name: str(file)}
    with pytest.raises(ValueError, match=f"^--{name.replace('_', '-')}: {words}") as caught:
        read_credentials(load_settings(flags), flags)
    assert "secret" not in str(caught.value)


@BOTH
def test_a_file_may_be_a_pipe(start: Start, workers: int) -> None:
    """Process substitution gives keys that can be read once; SIGHUP changes nothing then."""
    script = 'exec "$0" "$@" --api-keys-file <(echo first-key-1)'
    command = ["bash", "-c", script, *COMMAND]
    process = start("--workers", str(workers), command=command)
    assert [_status(process, key) for key in ("first-key-1", "wrong-key-4")] == [200, 401]
    process.signal(signal.SIGHUP)
    process.read_until("stay as they are")
    assert all(_status(process, "first-key-1") == 200 for _ in range(4))


@pytest.mark.parametrize(("workers", "place"), [(1, "keys"), (2, ".")])
def test_a_named_pipe_holds_up_nobody_at_a_reload(
    start: Start, tmp_path: Path, workers: int, place: str
) -> None:
    """Nobody may ever write to it again; requests are answered, and the keys stay.

    It may be the file of keys, or lie in a directory of them.
    """
    pipe = tmp_path / "keys"
    os.mkfifo(pipe)
    writing = threading.Thread(target=pipe.write_text, args=("first-key-1",), daemon=True)
    writing.start()
    process = start("--workers", str(workers), "--api-keys-file", str(tmp_path / place))
    assert _status(process, "first-key-1") == 200
    process.signal(signal.SIGHUP)
    setting = f"--api-keys-file {tmp_path / place}"
    process.read_until(f"stay as they are: {setting}: {pipe} is a pipe")
    assert all(_status(process, "first-key-1") == 200 for _ in range(4))


@pytest.mark.parametrize("content", ["second-key-2", None], ids=["other", "no file"])
def test_a_new_worker_has_the_keys_that_are_in_force(
    start: Start, tmp_path: Path, content: str | None
) -> None:
    """The file has changed, and nobody has said so yet: the others have the old keys, too."""
    file = tmp_path / "keys"
    file.write_text("first-key-1", encoding="utf-8")
    process = start("--api-keys-file", str(file), "--workers", "2")
    before = process.children()
    if content is None:
        file.unlink()
    else:
        file.write_text(content, encoding="utf-8")
    os.kill(before[0], signal.SIGKILL)

    def replaced() -> bool:
        told = httpx2.get(f"{process.url}/info", headers=_head("first-key-1")).json()["workers"]
        return before[0] not in (one["pid"] for one in told) and _all_ready(told)

    eventually(replaced)
    answers = [httpx2.get(f"{process.url}/info", headers=_head(KEYS[n % 2])) for n in range(8)]
    assert [answer.status_code for answer in answers] == [200, 401] * 4
    file.write_text("second-key-2", encoding="utf-8")
    process.signal(signal.SIGHUP)
    eventually(lambda: all(_fresh(process, "second-key-2") == 200 for _ in range(6)))
    assert all(_fresh(process, "first-key-1") == 401 for _ in range(6))


def test_workers_without_a_free_descriptor_do_not_keep_a_revoked_key(
    start: Start, tmp_path: Path
) -> None:
    """The file of the new keys cannot be passed to them; the log says so, and they are replaced."""
    file = tmp_path / "keys"
    file.write_text("first-key-1", encoding="utf-8")
    flags = ("--api-keys-file", str(file), "--workers", "2", "--drain-ms", "2000")
    process = start(*flags, command=["bash", "-c", 'ulimit -n 64; exec "$@"', "-", *COMMAND])
    with ExitStack() as stack:
        for _ in range(120):
            stack.enter_context(connect(process.port))
        process.read_until("no connection can be accepted: Too many open files")
        file.write_text("second-key-2", encoding="utf-8")
        process.signal(signal.SIGHUP)
        process.read_until("keys and certificate")
    eventually(lambda: all(_fresh(process, "second-key-2") == 200 for _ in range(6)))
    assert all(_fresh(process, "first-key-1") == 401 for _ in range(6))
