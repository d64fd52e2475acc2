"""Bundles that cannot be served are refused at start: exit code 1, and one line with the reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentiment_service.cli.command import main
from sentiment_service.engine.model import device
from sentiment_service.engine.model.bundle import Bundle, sha256
from sentiment_service.engine.model.device import CudaState
from sentiment_service.errors import UserError
from sentiment_service.main import create_app
from sentiment_service.settings.settings import Settings

from tests.support.tiny_bundle import make_bundle, write_manifest


def _delete(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def _link_to_itself(name: str) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        (path / name).unlink()
        (path / name).symlink_to(name)

    return link


def _file(name: str, precision: str = "fp32", **data: Any) -> Callable[[Path], None]:
    """Give a variant this file, or its weights with ``data``."""

    def harm(path: Path) -> None:
        (path.parent / "x").touch()
        manifest = json.loads((path / "manifest.json").read_text())
        variant = manifest["variants"]["fp32"] | {"file": name}
        if data:
            variant = manifest["variants"]["fp32"] | {"data": data | {"file": name}}
        manifest["variants"][precision] = variant
        (path / "manifest.json").write_text(json.dumps(manifest))

    return harm


def _append(name: str) -> Callable[[Path], None]:
    def append(path: Path) -> None:
        with (path / name).open("a") as file:
            file.write(" ")

    return append


def _truncate_model(path: Path) -> None:
    model = path / "onnx/model.onnx"
    model.write_bytes(model.read_bytes()[:200])
    write_manifest(path)  # its checksum is right


def _three_labels_two_outputs(path: Path) -> None:
    made = make_bundle(path.with_name("two"), outputs=2)
    (path / "onnx/model.onnx").write_bytes((made / "onnx/model.onnx").read_bytes())
    write_manifest(path)


def _two_labels_in_config(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    del config["id2label"]["2"]
    (path / "config.json").write_text(json.dumps(config))
    write_manifest(path)


def _a_label_twice(path: Path) -> None:
    labels = ["good", "good", "bad"]
    (path / "config.json").write_text(json.dumps({"id2label": dict(enumerate(labels))}))
    write_manifest(path, labels=labels)


def _no_labels_in_config(path: Path) -> None:
    (path / "config.json").write_text("{}")
    write_manifest(path)


def _manifest(**changes: object) -> Callable[[Path], None]:
    return lambda path: write_manifest(path, **changes)


def _not_a_tokenizer(path: Path) -> None:
    (path / "tokenizer.json").write_text("{}")
    write_manifest(path)


def _no_words(path: Path) -> None:
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    write_manifest(path)


def _nest(name: str) -> Callable[[Path], None]:
    def nest(path: Path) -> None:
        document = {**json.loads((path / name).read_text()), "model": "DEEP"}
        deep = "[" * 200_000 + "]" * 200_000
        (path / name).write_text(json.dumps(document).replace('"DEEP"', deep))
        if name != "manifest.json":
            write_manifest(path)

    return nest


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        pytest.param(_no_labels_in_config, "no usable id2label", id="config without labels"),
        pytest.param(_manifest(format_version="2"), "format_version", id="format as text"),
        pytest.param(_delete("onnx/model.onnx"), "lacks 'onnx/model.onnx'", id="no model"),
        pytest.param(_delete("tokenizer.json"), "lacks 'tokenizer.json'", id="no tokenizer"),
        pytest.param(_append("onnx/model.onnx"), "model.onnx is damaged", id="changed model"),
        pytest.param(_append("config.json"), "config.json is damaged", id="changed config"),
        pytest.param(_append("manifest.json"), None, id="white space is no harm"),
        pytest.param(_truncate_model, "cannot load", id="truncated model"),
        pytest.param(_not_a_tokenizer, "tokenizer.json", id="not a tokenizer"),
        pytest.param(_manifest(format_version=3), "format_version 3", id="newer format"),
        pytest.param(_manifest(labels=["a", "b"]), "contradicts", id="labels of the manifest"),
        pytest.param(_two_labels_in_config, "contradicts", id="labels of the config"),
        pytest.param(_three_labels_two_outputs, "2 outputs", id="outputs of the model"),
        pytest.param(_manifest(max_tokens="x"), "max_tokens", id="manifest of the wrong type"),
        pytest.param(_nest("manifest.json"), "recursion", id="200,000 levels in the manifest"),
        pytest.param(_nest("config.json"), "recursion", id="200,000 levels in the config"),
        pytest.param(_nest("tokenizer.json"), "recursion", id="200,000 levels in the tokenizer"),
        pytest.param(_a_label_twice, "two outputs have one name", id="a label twice"),
        pytest.param(_no_words, "cannot load", id="tokenizer without words"),
        pytest.param(_manifest(max_tokens=10**30), "max_tokens", id="no machine counts so far"),
        pytest.param(_manifest(name="x" * 256), "name", id="name longer than a file's"),
        pytest.param(_link_to_itself("config.json"), "lacks", id="link to itself"),
        pytest.param(_file("onnx\0"), "lacks", id="name that no file can have"),
        *(
            pytest.param(
                _file(name, precision),
                f"variants.{precision}.file: must be a path inside of the bundle",
                id=f"{precision} file {name!r}",
            )
            for precision in ("fp32", "fp16")  # of which the second is not even opened
            for name in ("../x", "onnx/../../x", "/etc/passwd", "..", ".", "", "..\\x")
        ),
        pytest.param(
            _file("../x", sha256="", bytes=1),
            "variants.fp32.data.file: must be a path inside of the bundle",
            id="weights outside",
        ),
        pytest.param(_manifest(threshold=1.1), "threshold", id="threshold above 1"),
        pytest.param(_manifest(thresholds={"joy": 2}), "thresholds.joy", id="threshold of 2"),
        pytest.param(
            _manifest(thresholds={"joy": 0.5}), "no label is called joy", id="threshold of no label"
        ),
        pytest.param(_manifest(files={}), "config.json", id="unlisted file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[Path], None],
    says: str | None,
) -> None:
    """The line names the bundle and its fault; there is no traceback."""
    path = make_bundle(tmp_path / "harmed")
    harm(path)
    if says is None:
        create_app(Settings(model=(path,)))
        return
    assert main(["serve", "--model", str(path), "--port", "0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    message = json.loads(line)["message"]
    assert str(path) in message
    assert says in message


@pytest.mark.parametrize("cached", [True, False])
def test_files_are_links_in_a_hub_cache(tmp_path: Path, *, cached: bool) -> None:
    """There, to files that all models share. Elsewhere, a bundle has no file outside itself."""
    model = tmp_path / ("models--acme--tiny" if cached else "tiny")
    path = make_bundle(model / "snapshots" / ("a1" * 20))
    shared = tmp_path / "blobs"
    shared.mkdir()
    for file in [file for file in path.rglob("*") if file.is_file()]:
        blob = shared / file.name
        file.rename(blob)
        file.symlink_to(blob)
    if not cached:
        with pytest.raises(UserError, match="names a file outside itself"):
            Bundle.open(path)
        return
    assert Bundle.open(path).variant_path("fp32") == shared / "model.onnx"
    for name in ("model.onnx", "manifest.json"):
        (shared / name).write_bytes(b'{"damaged')
        with pytest.raises(UserError, match=f"delete {shared / name} and download it again$"):
            Bundle.open(path).variant_path("fp32")


def test_what_helps_a_damaged_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody deletes the embedded one, which is part of the installation, or what is no bundle."""
    path = make_bundle(tmp_path / "tiny")
    (path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=f": delete {path}, and copy or export it again$"):
        Bundle.open(path)
    other = tmp_path / "program"  # whose manifest.json is of another kind
    other.mkdir()
    (other / "manifest.json").write_text("// a comment")
    with pytest.raises(UserError, match=r"; copy or export it again$"):
        Bundle.open(other)
    monkeypatch.setattr("sentiment_service.engine.model.bundle.EMBEDDED_BUNDLE", path)
    with pytest.raises(UserError, match=r": install the service again$"):
        Bundle.open(path)


def test_weights_beside_a_graph_that_is_a_link(tmp_path: Path) -> None:
    """ONNX Runtime looks for them beside the linked file. In a hub cache, they are not there."""
    model = tmp_path / "models--acme--tiny"
    path = make_bundle(model / "snapshots" / ("a1" * 20))
    data = path / "onnx" / "model.onnx_data"
    data.write_bytes(b"weights")
    manifest = json.loads((path / "manifest.json").read_bytes())
    facts = {"file": "onnx/model.onnx_data", "sha256": sha256(data), "bytes": 7}
    manifest["variants"]["fp32"]["data"] = facts
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert Bundle.open(path).variant_path("fp32") == path / "onnx" / "model.onnx"
    for number, file in enumerate((path / "onnx").iterdir()):
        blob = model / f"blob-{number}"
        file.rename(blob)
        file.symlink_to(blob)
    with pytest.raises(UserError, match="give --model ORG/NAME, or a copy that sentiment-export"):
        Bundle.open(path).variant_path("fp32")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--precision", "int8"], "no int8 variant; it holds: fp32"),
        (["--model", "{bundle}"], "named tiny"),  # a request could not choose between them
        (["--device", "cuda"], "CUDA cannot be used"),  # the CPU is not used instead
    ],
)
def test_what_the_bundle_or_the_machine_lacks(
    bundle: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    says: str,
) -> None:
    """The line names what was asked for and is not there."""
    monkeypatch.setattr(device, "cuda_state", lambda: CudaState(problem="no driver", cure="none"))
    flags = [flag.format(bundle=bundle) for flag in flags]
    assert main(["serve", "--model", str(bundle), *flags, "--port", "0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
