"""What platforms say by variables and mounts becomes settings, in the documented order."""

import json
import re
from pathlib import Path

import pytest
from sentiment_service.cli.command import main
from sentiment_service.errors import UserError
from sentiment_service.main import create_app
from sentiment_service.settings import sources as sources_module
from sentiment_service.settings.settings import Settings
from sentiment_service.settings.sources import load_settings, sources

PORTS = ["AIP_HTTP_PORT", "SAGEMAKER_BIND_TO_PORT", "PORT"]


@pytest.fixture(autouse=True)
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The platforms' mounts, none of which exists, and an environment without their variables."""
    mounts = [tmp_path / "opt/ml/model", tmp_path / "mnt/models", tmp_path / "repository"]
    monkeypatch.setattr(sources_module, "SAGEMAKER_MOUNT", mounts[0].parent)
    monkeypatch.setattr(sources_module, "MODEL_MOUNTS", mounts)
    for name in (*PORTS, "SENTIMENT_PORT", "SENTIMENT_MODEL", sources_module.AZURE_MODEL_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return mounts


def _put_bundle(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "manifest.json").touch()
    return path


@pytest.mark.parametrize("first", range(len(PORTS)))
def test_the_first_port_variable_decides(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """AIP_HTTP_PORT, SAGEMAKER_BIND_TO_PORT and PORT are looked up in this order."""
    for number, name in enumerate(PORTS[first:]):
        monkeypatch.setenv(name, str(1000 + number))
    assert load_settings({}).port == 1000
    assert f"port 1000 ({PORTS[first]})" in sources(load_settings({}), {})


def test_our_own_port_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag wins over SENTIMENT_PORT, and that over every platform; empty means not set."""
    for name in PORTS:
        monkeypatch.setenv(name, "")
    assert load_settings({}).port == 8000
    monkeypatch.setenv("AIP_HTTP_PORT", "1")
    monkeypatch.setenv("SENTIMENT_PORT", "2")
    assert load_settings({}).port == 2
    assert load_settings({"port": "3"}).port == 3
    assert "port 2 (SENTIMENT_PORT)" in sources(load_settings({}), {})
    assert "port 3 (--port)" in sources(load_settings({"port": "3"}), {"port": "3"})


@pytest.mark.parametrize("name", PORTS)
def test_a_bad_port_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The message names the platform's variable, not a flag that nobody gave."""
    monkeypatch.setenv(name, "http")
    with pytest.raises(ValueError, match=f"^{name}: must be a whole number, not 'http'$"):
        load_settings({})


def test_sagemaker_is_known_by_its_directory(mounts: list[Path]) -> None:
    """SageMaker sets no variable for its port 8080, so its directory or other variables decide."""
    assert sources_module.platform_settings({"SAGEMAKER_BATCH": "true"})["port"][0] == 8080
    assert (
        sources_module.platform_settings({"SAGEMAKER_BATCH": "true", "PORT": "1"})["port"][0] == "1"
    )
    mounts[0].mkdir(parents=True)
    assert load_settings({}).port == 8080


def test_the_first_mount_with_a_manifest_is_served(
    mounts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one has a manifest, others are passed over; SENTIMENT_MODEL and --model win."""
    mounts[0].mkdir(parents=True)
    (mounts[0] / "model.safetensors").touch()
    bundle = _put_bundle(mounts[1])
    _put_bundle(mounts[2])
    assert load_settings({}).model == (bundle,)
    assert f"model {bundle} ({bundle} has manifest.json)" in sources(load_settings({}), {})
    monkeypatch.setenv("SENTIMENT_MODEL", "/own")
    assert load_settings({}).model == (Path("/own"),)
    assert load_settings({"model": ("/flag",)}).model == (Path("/flag"),)


def test_a_mounted_checkpoint_is_the_model(mounts: list[Path]) -> None:
    """It is exported or refused, as with --model; nothing else is served in its place."""
    checkpoint = mounts[1] / "ours"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").touch()
    assert load_settings({}).model == (checkpoint,)
    assert "has files" in sources(load_settings({}), {})
    (mounts[1] / "config.json").touch()
    assert load_settings({}).model == (mounts[1],)


def test_a_mount_with_other_files_ends_the_start(
    mounts: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory that is no bundle, or cannot be read, is named; an empty one means: no model."""
    mounts[0].mkdir(parents=True)
    assert load_settings({}).model == ()
    (mounts[0] / "model.tar.gz").touch()
    assert main(["serve", "--port", "0", "--log-format", "json"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert str(mounts[0]) in json.loads(lines[-1])["message"]

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert load_settings({}).model == (mounts[0],)
    monkeypatch.undo()


def test_a_file_in_the_place_of_a_mount_is_not_ignored(tmp_path: Path) -> None:
    """It was meant to be the model, so no other one is served: the start ends."""
    file = tmp_path / "model.onnx"
    file.touch()
    found = sources_module.platform_settings({sources_module.AZURE_MODEL_VARIABLE: str(file)})
    assert found["model"][0] == (file,)


def test_a_mount_may_hold_directories_of_bundles(tmp_path: Path) -> None:
    """Azure ML mounts the registered folder inside AZUREML_MODEL_DIR. Several are all served."""
    for name in ("b", "a"):
        _put_bundle(tmp_path / "azure" / name)
    found = sources_module.platform_settings(
        {sources_module.AZURE_MODEL_VARIABLE: str(tmp_path / "azure")}
    )
    assert found["model"][0] == (tmp_path / "azure/a", tmp_path / "azure/b")


def test_without_a_mount_the_embedded_model_is_served() -> None:
    """Nothing is decided for a machine of no platform, and the log says so."""
    assert sources_module.platform_settings({}) == {}
    settings = load_settings({})
    assert (settings.model, settings.port) == ((), 8000)
    assert sources(settings, {}) == "port 8000 (default); model the embedded one (default)"


def test_limits_follow_sagemaker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body limit follows the payload; a batch transform job allows more texts and time."""
    monkeypatch.setenv("SAGEMAKER_MAX_PAYLOAD_IN_MB", "6")
    monkeypatch.setenv("SAGEMAKER_BATCH", "true")
    settings = load_settings({})
    assert settings.max_body_bytes == 6 * 2**20
    assert (settings.max_texts, settings.deadline_ms) == (100_000, 600_000)
    assert load_settings({"deadline_ms": "5"}).deadline_ms == 5
    monkeypatch.setenv("SAGEMAKER_MAX_PAYLOAD_IN_MB", "0")  # no limit: ours stays
    assert load_settings({}).max_body_bytes == 2_097_152
    monkeypatch.setenv("SAGEMAKER_MAX_PAYLOAD_IN_MB", "many")
    with pytest.raises(ValueError, match=r"^SAGEMAKER_MAX_PAYLOAD_IN_MB: must be a whole number"):
        load_settings({})


@pytest.mark.parametrize("path", ["predict", "/a b", "/{name}", "/a?b"])
def test_a_route_that_is_no_path_is_refused(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """The message names the variable and says what is accepted."""
    words = f"AIP_PREDICT_ROUTE: must be a path such as /predict, not {path!r}"
    monkeypatch.setenv("AIP_PREDICT_ROUTE", path)
    with pytest.raises(UserError, match=f"^{re.escape(words)}$"):
        create_app(Settings())
