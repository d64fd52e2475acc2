"""Settings: where their values come from, and the messages for bad values."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError
from sentiment_service.cli.command import main
from sentiment_service.settings.settings import Settings
from sentiment_service.settings.sources import check_key_variables, load_settings, unknown_variables

from tests.support.serving import COMMAND, installed, run_program

DEVICES = (
    "must be 'auto', 'cpu', 'cuda', or 'cuda:' and the numbers of GPUs, such as 'cuda:1' or "
    "'cuda:0,1'"
)


def test_several_models_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are separated as in PATH, and empty paths are ignored. Names have commas between them.

    ``~`` is expanded where no shell does it: behind '=' and in variables.
    """
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("SENTIMENT_MODEL", f"~/a{os.pathsep}/b,c{os.pathsep}")
    monkeypatch.setenv("SENTIMENT_SERVED_NAME", "a, b")
    settings = load_settings({"cache_dir": "~/c"})
    assert settings.model == (Path("/home/someone/a"), Path("/b,c"))
    assert settings.served_name == ("a", "b")
    assert settings.cache_dir == Path("/home/someone/c")


def test_unknown_variables() -> None:
    """They are named with the nearest setting. Kubernetes' service links are left out."""
    links = dict.fromkeys(
        [
            *("SENTIMENT_SERVICE_HOST", "SENTIMENT_SERVICE_PORT", "SENTIMENT_SERVICE_PORT_HTTP"),
            *("SENTIMENT_PORT_8000_TCP", "SENTIMENT_PORT_8000_TCP_ADDR", "SENTIMENT_V2_PORT"),
            "SENTIMENT_V2_SERVICE_HOST",
        ],
        "x",
    )
    known = {"SENTIMENT_API_KEY": "x", "SENTIMENT_PORT": "80", "sentiment_threads": "2", "PATH": ""}
    assert unknown_variables(links | known) == []
    assert unknown_variables({"SENTIMENT_THREAD": "1"}) == [
        "SENTIMENT_THREAD is not a setting (the nearest is SENTIMENT_THREADS), so it has no effect"
    ]
    for name, hint in {
        "METRIC_PORT": " (the nearest is SENTIMENT_METRICS_PORT)",
        "APIKEY": " (the nearest is SENTIMENT_API_KEYS)",  # not SENTIMENT_API_KEY, a client's
        "BOGUS": "",
    }.items():
        assert unknown_variables({f"SENTIMENT_{name}": "2"}) == [
            f"SENTIMENT_{name} is not a setting{hint}, so it has no effect"
        ]


def test_where_keys_have_names_is_described() -> None:
    """Only files take name=key: the help of their settings says so, and that of the others not."""
    named = {
        name
        for name, field in Settings.model_fields.items()
        if "name=key" in str(field.description)
    }
    assert named == {"api_keys_file", "admin_keys_file"}


@pytest.mark.parametrize("name", ["port", "metrics_port", "grpc_port"])
@pytest.mark.parametrize("value", ["tcp://10.43.0.9:80", "udp://[fd00::9]:80", "sctp://10.0.0.9:1"])
def test_the_address_of_a_service_is_no_port(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Kubernetes sets it in every pod beside a Service that is called like ours, as Docker does.

    The platform's port counts as without it. A flag is not taken for such an address.
    """
    variable = f"SENTIMENT_{name.upper()}"
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PORT", "8765")
    field = Settings.model_fields[name]
    assert getattr(Settings(), name) == field.default
    assert getattr(load_settings({}), name) == (8765 if name == "port" else field.default)
    (line,) = unknown_variables({variable: value, f"{variable}_80_TCP": value})
    assert line.startswith(f"{variable} is the address of a Service")
    with pytest.raises(ValueError, match=f"^--{name.replace('_', '-')}: must be a whole number"):
        load_settings({name: value})


def test_the_address_of_any_service_may_stand_beside_the_keys() -> None:
    """A Service called sentiment-api-key is no key that somebody wanted."""
    links = {"SENTIMENT_API_KEY_PORT": "tcp://10.0.0.1:80", "SENTIMENT_API_KEY_PORT_80_TCP": "x"}
    check_key_variables(links, Settings())


@pytest.mark.parametrize("home", ["", "relative", None])
def test_without_a_home_directory_nothing_is_kept(bundle: Path, home: str | None) -> None:
    """The user need not have an entry in the system's list of users, either."""
    user = [installed("unshare", "util-linux"), "--user", "--map-user=54321", "--map-group=54321"]
    variables = [
        "env",
        "-i",
        f"PATH={os.environ['PATH']}",
        *([] if home is None else [f"HOME={home}"]),
    ]
    command = [*COMMAND, "classify", "--model", str(bundle), "love"]
    done = run_program(*user, *variables, *command)
    if "unshare failed" in done.stderr:
        pytest.skip("this system allows no other user")
    assert done.stdout.startswith("positive"), done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(
    "variable",
    [
        *("SENTIMENT_API_KEY", "SENTIMENT_API_KEYS_FILE", "SENTIMENT_KEYS"),
        *("sentiment_api_key", "SENTIMENT_SECRET_KEY_OF_OURS"),
    ],
)
def test_a_key_in_a_variable_that_nobody_reads_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    """A service that was meant to have keys is not open; the line names the right variable."""
    monkeypatch.setenv(variable, "first-key-1")
    # Nobody has this address, so a service that does not end at once ends with exit code 1.
    assert main(["serve", "--host", "192.0.2.1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    message = json.loads(line)["message"]
    assert message.startswith(variable.upper())
    assert "SENTIMENT_API_KEYS" in message
    assert "first-key" not in message
    check_key_variables({"SENTIMENT_API_KEY": "x"}, Settings(api_keys="first-key-1"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        *("model", "api_keys", "admin_keys"),
        *("api_keys_file", "admin_keys_file", "tls_cert", "tls_key"),
    ],
)
def test_an_empty_model_key_or_file_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A variable that a script left empty neither opens the service nor changes what is served."""
    monkeypatch.setenv(f"SENTIMENT_{name.upper()}", "")
    with pytest.raises(
        ValueError, match=f"^SENTIMENT_{name.upper()}: give .*, or leave this out"
    ) as caught:
        load_settings({})
    assert "everyone" not in str(caught.value)
    with pytest.raises(ValueError, match=f"^--{name.replace('_', '-')}: "):
        load_settings({name: ["", "other"] if name == "model" else ""})


def test_an_empty_host_means_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that a script left empty does not open the service to every network."""
    monkeypatch.setenv("SENTIMENT_HOST", "")
    assert load_settings({}).host == "127.0.0.1"
    assert load_settings({"host": ""}).host == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("port", "http://10.0.0.1:8000", "must be a whole number"),
        ("cache_mb", "-1", "must be at least 0"),
        ("drain_ms", "-1", "must be at least 0"),
        ("max_texts", "0", "must be at least 1"),
        ("log_level", "loud", "must be .+"),
        ("port", "65536", "must be at most 65535"),
        ("runners", "1025", "must be at most 1024"),
        ("threads", "100000", "must be at most 1024"),
        ("device", "tpu", DEVICES),
        ("device", "cuda:", DEVICES),
        ("device", "cuda:x", DEVICES),
        ("device", "cuda:0,", DEVICES),
        ("device", "cuda:-1", DEVICES),
        ("device", "cpu:0", DEVICES),
        ("device", "cuda:1,01", "name each GPU once"),
    ],
)
def test_what_is_accepted_is_said_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    """The message says what is accepted, and nothing about how the value was read."""
    monkeypatch.setenv(f"SENTIMENT_{name.upper()}", value)
    with pytest.raises(ValueError, match=f"^SENTIMENT_{name.upper()}: {words}, not '{value}'$"):
        load_settings({})


RATE = "--rate-limit: .*600/minute"
ORIGIN = r"--cors-origins: .*https://example.org, or '\*'"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"max_texts": "many"}, "--max-texts: "),
        *(({"rate_limit": r}, RATE) for r in ("fast", "0/minute", "5/fortnight", "5 per minute")),
        ({"rate_limit": "9" * 20 + "/minute"}, RATE),
        *(
            (
                {"workers": workers},
                f"--workers: must be 'auto' or .* from 1 to 1024, not '{workers}'$",
            )
            for workers in ("100000", "0", "-1", "two", "1.5", "")
        ),
        *(
            ({"cors_origins": origins}, ORIGIN)
            for origins in ("example.org", "https://example.org/path", "https:// x")
        ),
        ({"model": "https://huggingface.co/acme/tiny"}, "--model: .* is given as ORG/NAME, not "),
        ({"max_inflight_bytes": 1000}, "--max-inflight-bytes: one body may have 2097152 bytes"),
        (
            {"served_name": ["a", "b"]},
            "--served-name: .* at most as many names as models: 1, not 'a, b'$",
        ),
        (
            {"model": ["x", "y"], "served_name": ["a", "a"]},
            "--served-name: give each model another name",
        ),
        *(
            ({"served_name": names}, "--served-name: a name must be up to 128 letters, digits")
            for names in (["a/b"], ",b", "a,,b")
        ),
        *(
            (
                {"otlp_endpoint": url},
                f"--otlp-endpoint: must be a URL that begins with http:// or .*, not '{url}'$",
            )
            for url in ("localhost:4318", "grpc://localhost:4317", "http:/collector", "https://")
        ),
        (
            {"languages": "en,true"},
            "--languages: must be language tags, such as en or pt-BR, not 'en,true'$",
        ),
    ],
)
def test_a_bad_flag_is_named(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, object], words: str
) -> None:
    """The message names the flag, even if a variable is set as well, and says what is accepted."""
    monkeypatch.setenv("SENTIMENT_MAX_TEXTS", "5")
    with pytest.raises(ValueError, match=f"^{words}"):
        load_settings(flags)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_int8_on_a_gpu_is_refused(device: str) -> None:
    """The reason and what is accepted are said; on the CPU, and with `auto`, int8 is accepted."""
    with pytest.raises(ValidationError, match=r"int8 is for CPUs: .* give fp16, fp32 or auto"):
        Settings(device=device, precision="int8")
    assert Settings(device="auto", precision="int8").precision == "int8"


def test_settings_do_not_change() -> None:
    """A setting cannot be assigned, so the values logged at start stay true."""
    with pytest.raises(ValidationError):
        Settings().port = 1


def test_every_setting_says_what_it_is() -> None:
    """Every setting has a description, which --help shows."""
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_settings_made_from_settings_are_equal() -> None:
    """The digests of keys are not hashed a second time, and the keys still match."""
    key = "0123456789abcdef" * 4  # as long as a digest
    settings = load_settings({"api_keys": f"{key},second-key", "admin_keys": "admin-key"})
    assert settings.api_keys[0] == hashlib.sha256(key.encode()).hexdigest().encode()
    assert Settings(**settings.model_dump()) == settings


def test_keys_that_are_not_hashed_are_refused() -> None:
    """A list of plain keys is an error: it would be taken for digests, and no key would match."""
    with pytest.raises(ValueError, match=r"^--api-keys: "):
        load_settings({"api_keys": ("first-key",)})
