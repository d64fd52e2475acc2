"""Debian systems of the checks: pip finds there what it finds here."""

from pathlib import Path

import pytest

from checks.support.debian import pip_sources


def test_files_that_pip_reads_here_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration, wheels and constraints; an address needs no file."""
    wheels, constraints = tmp_path / "wheels", tmp_path / "constraints.txt"
    wheels.mkdir()
    constraints.touch()
    configuration = tmp_path / "here.conf"
    configuration.write_text(
        f"[global]\nconstraint = {constraints}\nfind-links = {wheels} https://example.org/wheels\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    for name in ("PIP_CERT", "PIP_CONSTRAINT", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    there = tmp_path / "there.conf"
    mounts = dict(pip_sources(there))
    assert mounts[str(there)] == "/etc/pip.conf"
    assert mounts[str(wheels)] == str(wheels)
    assert mounts[str(constraints)] == str(constraints)
    assert "https://example.org/wheels" not in mounts
    assert f"constraint = {constraints}" in there.read_text()
