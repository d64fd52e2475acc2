"""Keys from files, as orchestrators mount secrets; SIGHUP reads them again."""

import signal
from pathlib import Path

import pytest
from sentiment_service.cli.sources import load_settings

from tests.conftest import Start
from tests.support.serving import Process, eventually

BOTH = pytest.mark.parametrize("workers", [1, 2])


def _status(process: Process, key: str) -> int:
    return process.client.get("/info", headers={"authorization": f"Bearer {key}"}).status_code


@BOTH
def test_sighup_reads_the_keys_again(start: Start, tmp_path: Path, workers: int) -> None:
    """All workers take new keys and forget old ones. A file without keys does not open the service.

    Keys that were given without a file stay.
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
    assert "third-key" not in process.read_until("stay as they are: give at least one key")
    assert [_status(process, key) for key in ("third-key-3", "wrong-key-4")] == [200, 401]


def test_a_mounted_secret_gives_keys(start: Start, tmp_path: Path) -> None:
    """Each file of a directory has keys, but not the hidden ones of Kubernetes."""
    version = tmp_path / "..2026_11_25"
    version.mkdir()
    for name, keys in (("one", "admin-key-1"), ("others", "admin-key-2\nadmin-key-3\n")):
        (version / name).write_text(keys, encoding="utf-8")
        (tmp_path / name).symlink_to(version / name)
    (tmp_path / ".old").write_text("admin-key-0", encoding="utf-8")
    process = start("--admin-keys-file", str(tmp_path))
    heads = [{"authorization": f"Bearer admin-key-{n}"} for n in range(4)]
    codes = [process.client.post("/models/tiny/reload", headers=head).status_code for head in heads]
    assert codes == [401, 200, 200, 200]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no keys can be read there: No such file or directory"),
        ("", "give at least one key"),
        ("my secret key", "a key must be 8 to 256 printable ASCII characters without spaces"),
        ("clé-secrète", "a key must be 8 to 256 printable ASCII characters without spaces"),
    ],
)
@pytest.mark.parametrize("name", ["api_keys_file", "admin_keys_file"])
def test_a_wrong_file_ends_the_start(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    """The error names the setting and the fault, and neither a key nor what may be one."""
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=f"^--{name.replace('_', '-')}: {words}") as caught:
        load_settings({name: str(file)})
    assert "secret" not in str(caught.value)
