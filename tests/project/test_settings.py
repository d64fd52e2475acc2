"""Settings: where they come from, and what is said of bad ones."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.settings import Settings, load_settings


def test_the_environment_sets_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """SENTIMENT_<NAME> becomes the field, in its type."""
    monkeypatch.setenv("SENTIMENT_MAX_BATCH_TOKENS", "64")
    assert load_settings({}).max_batch_tokens == 64


def test_a_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever types a flag means it."""
    monkeypatch.setenv("SENTIMENT_PORT", "1")
    assert load_settings({"port": "2"}).port == 2


def test_several_models_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are separated as in PATH; empty ones do not count."""
    monkeypatch.setenv("SENTIMENT_MODEL", f"/a{os.pathsep}/b,c{os.pathsep}")
    assert load_settings({}).model == (Path("/a"), Path("/b,c"))


def test_an_empty_host_is_as_good_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that a script left empty does not open the service to every network."""
    monkeypatch.setenv("SENTIMENT_HOST", "")
    assert load_settings({}).host == "127.0.0.1"
    assert load_settings({"host": ""}).host == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "tcp://10.0.0.1:8000"),
        ("port", "65536"),
        ("device", "tpu"),
        ("max_texts", "0"),
        ("drain_ms", "-1"),
        ("log_level", "loud"),
    ],
)
def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """The message is one line with the variable's name and its value."""
    monkeypatch.setenv(f"SENTIMENT_{name.upper()}", value)
    with pytest.raises(ValueError, match=f"^SENTIMENT_{name.upper()}: .+, not '{value}'$"):
        load_settings({})


def test_a_bad_flag_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad flag is told by its own name, also where the variable is set."""
    monkeypatch.setenv("SENTIMENT_MAX_TEXTS", "5")
    with pytest.raises(ValueError, match=r"^--max-texts: "):
        load_settings({"max_texts": "many"})


def test_settings_do_not_change() -> None:
    """What was logged and reported at start stays true."""
    with pytest.raises(ValidationError):
        Settings().port = 1


def test_every_setting_says_what_it_is() -> None:
    """--help is made of the descriptions."""
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
