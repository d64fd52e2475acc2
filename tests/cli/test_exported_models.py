"""Hub ids and checkpoint directories as models: exported once, kept, and served."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sentiment_service.cli.command import main
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.errors import UserError
from sentiment_service.exported_models import with_bundles
from sentiment_service.settings.settings import Settings
from sentiment_service.settings.sources import load_settings

from tests.support.checkpoints import Exported, configure, exported
from tests.support.exporter import replace_exporter
from tests.support.model_export.hub import Hub
from tests.support.model_export.plain_graph import (
    SIDE_FILES,
    make_repository,
    quantize,
    weights_outside,
)
from tests.support.serving import (
    COMMAND,
    ROOT,
    Program,
    children_of,
    environment,
    eventually,
    state_of,
)

REPO = "acme/tiny-sentiment"
AUTO = "--else fp32,fp16"
# In the place of sentiment-export: notes its arguments in the manifest, and the commit COMMIT.
FAKE = """
import json, os, pathlib, sys
source, _, output, *rest = sys.argv[1:]
bundle = pathlib.Path(output)
bundle.mkdir(parents=True, exist_ok=True)
print("exporting the graph")
if "broken" in source:
    print("sentiment-export: it is damaged")
    sys.exit(1)
origin = {"revision": os.environ.get("COMMIT"), "date": "2022-09-21T10:15:00+00:00"}
notes = ["labels a become b", "warning: it has no names"]
document = {"words": [source, *rest], "source": origin, "notes": notes}
(bundle / "manifest.json").write_text(json.dumps(document))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A checkpoint and its bundle."""
    return exported(tmp_path_factory.getbasetemp(), "bert")


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An empty hub."""
    with Hub() as hub:
        yield hub


def _environment(hub: Hub, tmp_path: Path, **more: str) -> dict[str, str]:
    """Variables of a process whose caches are empty and whose hub is this one."""
    kept = {k: v for k, v in environment(**more).items() if "proxy" not in k.lower()}
    caches = {"HF_HOME": str(tmp_path / "hub"), "SENTIMENT_CACHE_DIR": str(tmp_path / "cache")}
    return {**kept, "HF_ENDPOINT": hub.url, **caches}


def _started(words: list[str], variables: dict[str, str], cwd: Path = ROOT) -> Program:
    pipes: Any = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    command = [*COMMAND, *words]
    return Program(command, cwd=cwd, env=variables, stdin=subprocess.DEVNULL, text=True, **pipes)


def _classified(
    model: str, variables: dict[str, str], cwd: Path = ROOT, *words: str
) -> tuple[int, str, str]:
    """The exit code of `classify`, what it answered and what it told."""
    with _started(["classify", "--model", model, *words, "love"], variables, cwd) as process:
        answer, told = process.communicate(timeout=300)
        return process.returncode, answer, told


def test_a_hub_id_is_exported_once(hub: Hub, checkpoint: Exported, tmp_path: Path) -> None:
    """Of two starts, one exports and one waits. The next one, also in Python, asks nobody."""
    commit = hub.add(REPO, checkpoint.source)
    variables = _environment(hub, tmp_path)
    with ThreadPoolExecutor(2) as pool:
        codes, answers, told = zip(*pool.map(_classified, [REPO] * 2, [variables] * 2), strict=True)
    assert codes == (0, 0), told
    assert answers[0] == answers[1]
    assert answers[0].endswith("\tlove\n")
    steps = "".join(told)
    assert steps.count(f"sentiment: exporting {REPO}") == 1
    assert steps.count(f"another process is exporting {REPO}; waiting for it") == 1
    assert steps.index("writing the graphs") < steps.index("comparing int8 with PyTorch")
    (manifest,) = (tmp_path / "cache" / "models").rglob("manifest.json")
    document = json.loads(manifest.read_text())
    assert document["name"] == "tiny-sentiment"
    assert document["source"]["revision"] == commit
    assert document["source"]["date"] == "2022-09-21T10:15:00+00:00"
    hub.requests.clear()
    assert _classified(REPO, variables) == (0, answers[0], "")
    code = f"from sentiment_service import Classifier; print(Classifier('{REPO}').classify('love'))"
    python = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True)
    label = answers[0].partition("\t")[0]
    assert python.stdout.startswith(f"Prediction(label='{label}'".encode()), python.stderr
    assert hub.requests == []


@pytest.fixture
def no_torch(tmp_path: Path) -> Path:
    """A user's project, whose interpreter has no PyTorch."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("torch", "transformers", "optimum"):
        missing = f"raise ModuleNotFoundError('No module named {name}', name='{name}')"
        (project / f"{name}.py").write_text(missing)
    return project


def test_a_bundle_on_the_hub_is_served_without_pytorch(
    hub: Hub, checkpoint: Exported, tmp_path: Path, no_torch: Path
) -> None:
    """A project without PyTorch uses it, and fetches only the variant that it serves.

    A checkpoint there is refused with the commands that install the exporter. An unreachable hub is
    called that.
    """
    hub.add("acme/bundle", checkpoint.bundle)
    hub.add(REPO, checkpoint.source)
    variables = _environment(hub, tmp_path)
    variables["PYTHONPATH"] = "."
    _answer("acme/bundle", variables, no_torch)
    (manifest,) = (tmp_path / "cache" / "models").rglob("manifest.json")
    assert list(json.loads(manifest.read_text())["variants"]) == ["int8"]
    assert not any(name.endswith("model.onnx") for name in hub.fetched())
    code, _, told = _classified(REPO, variables, no_torch)
    assert code == 1
    last = told.splitlines()[-1]
    assert f"{REPO} cannot be used: this needs the package torch" in last
    assert f"-m uv pip install --python {Path(sys.executable).parent}/" in last
    variables["HF_ENDPOINT"] = "http://127.0.0.1:9"
    _, _, told = _classified("acme/other", variables, no_torch)
    last = told.splitlines()[-1]
    assert "acme/other cannot be used: cannot reach http://127.0.0.1:9" in last
    assert last.endswith("or give a directory: there is none named acme/other")


def test_an_onnx_repository_is_served_without_pytorch(
    hub: Hub, checkpoint: Exported, tmp_path: Path, no_torch: Path
) -> None:
    """Its graph and the graph's weights are fetched, and no others; or the graph that is named.

    Once it is in the hub's cache, the hub need not answer. A directory of it does as well.
    """
    source = make_repository(tmp_path / "onnx-source", checkpoint.source, "onnx/model.onnx")
    quantize(source / "onnx/model.onnx", source / "onnx/model_quantized.onnx")
    weights_outside(source / "onnx/model.onnx")
    hub.add("acme/graphs", source)
    both = shutil.copytree(source, tmp_path / "both")
    shutil.copyfile(checkpoint.source / "model.safetensors", both / "model.safetensors")
    hub.add("acme/both", both)
    variables = _environment(hub, tmp_path)
    variables["PYTHONPATH"] = "."
    side = [name for name in SIDE_FILES if (source / name).exists()]
    said = _answer("acme/graphs", variables, no_torch)
    assert {*hub.fetched()} == {*side, "onnx/model.onnx", "onnx/model.onnx_data"}
    hub.requests.clear()
    quantized = "onnx/model_quantized.onnx"
    _answer("acme/both", variables, no_torch, "--onnx", quantized)
    assert {*hub.fetched()} == {*side, quantized}
    manifests = (tmp_path / "cache/models").rglob("manifest.json")
    documents = [json.loads(path.read_text()) for path in manifests]
    assert [document["reference"] for document in documents] == ["onnx", "onnx"]
    variables |= {"HF_HUB_OFFLINE": "1", "SENTIMENT_CACHE_DIR": str(tmp_path / "other-cache")}
    assert _answer("acme/graphs", variables, no_torch) == said
    assert _answer(str(source), variables, no_torch) == said


def _answer(model: str, variables: dict[str, str], cwd: Path, *words: str) -> str:
    code, answer, told = _classified(model, variables, cwd, *words)
    assert code == 0, told
    assert answer.endswith("\tlove\n")
    return answer


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["classify", "love"], signal.SIGKILL),
        (["serve", "--port", "0", "--workers", "2"], signal.SIGINT),
        (["serve", "--port", "0", "--workers", "2"], signal.SIGTERM),
    ],
)
def test_a_command_that_ends_leaves_no_export(
    checkpoint: Exported, hub: Hub, tmp_path: Path, words: list[str], number: int
) -> None:
    """Its export ends with it, whatever it does at that moment."""
    command, *rest = words
    command_line = [command, "--model", str(checkpoint.source), *rest]
    with _started(command_line, _environment(hub, tmp_path)) as process:
        assert process.stderr
        assert any("writing the graphs" in line for line in process.stderr)
        (child,) = children_of(process.pid)
        export = os.pidfd_open(child)
        signal.pidfd_send_signal(export, signal.SIGSTOP)  # it cannot end by itself
        # Python would notice a signal just before it reads only after it has read the next line.
        eventually(lambda: state_of(process.pid) == "S")
        process.send_signal(number)
        try:
            process.communicate(timeout=60)
            assert select.select([export], [], [], 60)[0]  # readable: it has ended
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(export, signal.SIGKILL)
            os.close(export)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A quick sentiment-export, and the cache directory to use."""
    replace_exporter(tmp_path, FAKE, monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def _used(cache: Path, *models: str, **settings: Any) -> list[Path]:
    values = {"model": os.pathsep.join(models), "cache_dir": str(cache), **settings}
    return list(with_bundles(load_settings(values), print).model)


def _words(bundle: Path) -> str:
    """The arguments of the export that made the bundle, its output apart."""
    return " ".join(json.loads((bundle / "manifest.json").read_text())["words"])


def test_a_changed_checkpoint_is_exported_again(fake: Path, tmp_path: Path) -> None:
    """A directory is exported once for each of its states; the last part is the model's name."""
    (tmp_path / "mine").mkdir()
    config = tmp_path / "mine" / "config.json"
    config.write_text("{}")
    (tmp_path / "mine" / "model.safetensors").touch()
    (first,) = _used(fake, "mine")
    assert first.name == "mine"
    assert _words(first) == f"{config.parent} --precision int8"
    assert _used(fake, "mine") == [first]
    config.write_text('{"new": 1}')
    (second,) = _used(fake, "mine")
    assert second != first


def test_the_export_says_what_a_directory_lacks(fake: Path, tmp_path: Path) -> None:
    """Of one without weights, and of one around a checkpoint, which is in a directory in it."""
    for name in ("bare/config.json", "around/onnx/config.json", "around/onnx/model.onnx"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for path in (tmp_path / "bare", tmp_path / "around"):
        assert _words(*_used(fake, str(path))) == f"{path} --precision int8"


def test_paths_and_hub_ids(fake: Path, tmp_path: Path) -> None:
    """An existing path wins. ./ and / begin paths only, and one that does not exist is called so.

    A revision follows @.
    """
    (tmp_path / "acme" / "here").mkdir(parents=True)
    (tmp_path / "acme" / "here" / "manifest.json").touch()
    assert _used(fake, "acme/here") == [Path("acme/here")]
    for path in ("./acme/gone", "/acme/gone", "gone", "a/b/c"):
        with pytest.raises(UserError, match=r"^there is no directory .*(gone|a/b/c); .* ORG/NAME$"):
            _used(fake, path)
    (tmp_path / "model.onnx").touch()
    with pytest.raises(UserError, match=r"^there is no directory .*model.onnx; give that of a"):
        Bundle.open(_used(fake, str(tmp_path / "model.onnx"))[0])
    assert with_bundles(Settings()) == Settings()  # of the embedded model
    assert not fake.exists()
    main, old, other = _used(fake, "acme/gone", "acme/gone@refs/pr/1", "acme/lock")
    assert _words(main) == f"acme/gone --precision int8 {AUTO}"
    assert _words(old) == f"acme/gone --precision int8 {AUTO} --revision refs/pr/1"
    assert other.name == "lock"
    assert len({main, old, other, *_used(fake, "acme/gone", precision="fp32")}) == 4


def test_a_models_directory_in_a_hub_cache(fake: Path, tmp_path: Path) -> None:
    """Its main revision is exported, or served if it is a bundle, under the model's name."""
    model = tmp_path / "models--acme--tiny"
    snapshot = model / "snapshots" / ("a1" * 20)
    for directory in (snapshot, model / "refs"):
        directory.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    (model / "refs/main").write_text(snapshot.name)
    (bundle,) = _used(fake, str(model))
    assert _words(bundle) == f"{snapshot} --precision int8"
    assert bundle.name == "tiny"
    (snapshot / "manifest.json").touch()
    assert _used(fake, str(model)) == [snapshot]
    (model / "refs/main").rename(model / "refs/dev")
    with pytest.raises(UserError, match=f"{model} has no revision main: give one of the director"):
        _used(fake, str(model))


@pytest.mark.parametrize(
    ("device", "precision", "words"),
    [
        ("cpu", "auto", f"--precision int8 {AUTO}"),
        ("cuda", "auto", "--precision fp16 --else fp32"),
        ("cpu", "fp16", "--precision fp16"),
    ],
)
def test_a_bundle_on_the_hub_may_have_another_variant(
    fake: Path, device: str, precision: str, words: str
) -> None:
    """Under auto, any that would be served of a directory; a named precision is asked for alone."""
    (bundle,) = _used(fake, "acme/gone", device=device, precision=precision)
    assert _words(bundle) == f"acme/gone {words}"


def test_what_auto_has_kept_is_not_taken_for_another_variant(fake: Path) -> None:
    """It may be fp32 in the place of int8. Whoever names int8 then gets it, or learns why not."""
    (bundle,) = _used(fake, "acme/gone")
    manifest = bundle / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "variants": {"fp32": {}}}))
    assert _used(fake, "acme/gone") == [bundle]
    assert AUTO in _words(bundle)
    assert _used(fake, "acme/gone", precision="int8") == [bundle]
    assert AUTO not in _words(bundle)


def test_what_is_left_of_a_kept_bundle_is_exported_again(
    hub: Hub, checkpoint: Exported, tmp_path: Path
) -> None:
    """The exporter would not replace it; of one that is damaged, the error says what to delete."""
    hub.add("acme/bundle", checkpoint.bundle)
    variables = _environment(hub, tmp_path)
    answer = _answer("acme/bundle", variables, ROOT)
    (manifest,) = (tmp_path / "cache" / "models").rglob("manifest.json")
    manifest.write_text("{")
    assert _answer("acme/bundle", variables, ROOT) == answer
    (graph,) = manifest.parent.rglob("*.onnx")
    graph.write_bytes(b"damaged")
    code, _, told = _classified("acme/bundle", variables)
    assert code == 1
    assert told.endswith(f": delete {manifest.parent}, and copy or export it again\n")
    shutil.rmtree(manifest.parent)
    assert _answer("acme/bundle", variables, ROOT) == answer


def test_an_export_that_is_killed_is_called_that(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the signal, and for SIGKILL what it mostly means."""
    kill = "import os; print('almost done', flush=True); os.kill(os.getpid(), 9)"
    replace_exporter(tmp_path, kill, monkeypatch)
    with pytest.raises(UserError, match="killed by SIGKILL; is there too little memory"):
        _used(fake, "acme/tiny")


def test_a_full_cache_names_its_option(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter says that the disk is full; what helps is --cache-dir, not its --output."""
    full = f"""
import errno, pathlib, sys
from sentiment_service.errors import UserError
from sentiment_service.atomic_files import full_disk_named
try:
    with full_disk_named(pathlib.Path({str(fake.parent)!r})):
        raise OSError(errno.ENOSPC, "No space left on device")
except UserError as error:
    sys.exit(f"sentiment-export: {{error}}")
"""
    replace_exporter(tmp_path, full, monkeypatch)
    with pytest.raises(UserError, match="free some space there, or give a --cache-dir on another"):
        _used(fake, "acme/tiny")


def test_a_model_that_cannot_be_exported(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is the last line of the exporter, once; without a cache it names --cache-dir."""
    with pytest.raises(UserError, match=r"^acme/broken cannot be used: it is damaged$"):
        _used(fake, "acme/broken")
    assert "damaged" not in capsys.readouterr().out
    with pytest.raises(UserError, match=r"/dev/null/models.*: Not a directory; give another --cac"):
        _used(Path("/dev/null"), "acme/other")


@pytest.mark.parametrize("flag", ["--port", "--metrics-port", "--grpc-port"])
def test_a_taken_port_is_found_before_the_export(
    fake: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    """Nothing is exported for a service that could not start."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"--port": 0, flag: taken.getsockname()[1]}
        flags = [word for name, port in ports.items() for word in (name, str(port))]
        assert main(["serve", "--model", "acme/slow", "--cache-dir", str(fake), *flags]) == 1
    assert "Address already in use; choose another with --port" in capsys.readouterr().err
    assert not fake.exists()


OPTIONS: dict[str, Any] = {
    "labels": "bad, so-so,good",
    "preprocessing": "tweet",
    "multi_label": True,
    "text_pairs": True,
    "max_tokens": "32",
    "languages": "en, pt-BR",
}
FLAGS = (
    "--labels bad,so-so,good --preprocessing tweet --multi-label --text-pairs --max-tokens 32 "
    "--languages en,pt-BR"
)


def test_options_belong_to_the_kept_export(fake: Path) -> None:
    """Each is handed on, and another choice is another export; the same choice is found again."""
    plain, chosen = _used(fake, "acme/gone"), _used(fake, "acme/gone", **OPTIONS)
    assert _words(chosen[0]) == f"acme/gone --precision int8 {FLAGS} {AUTO}"
    assert chosen == _used(fake, "acme/gone", **OPTIONS)
    several, single = (_used(fake, "acme/gone", multi_label=value) for value in (True, False))
    assert _words(single[0]).endswith(f" --single-label {AUTO}")
    assert len({*plain, *chosen, *several, *single}) == 4


@pytest.mark.parametrize(("name", "value"), OPTIONS.items())
def test_a_bundle_takes_no_options(
    fake: Path, checkpoint: Exported, name: str, value: object
) -> None:
    """Nor does the embedded model, or several models: the error names the flag and what helps."""
    flag = f"--{name.replace('_', '-')}"
    for models in ([str(checkpoint.bundle)], []):
        values = {name: value, **({"model": models[0]} if models else {})}
        with pytest.raises(UserError, match=f"is a bundle, and {flag} cannot change it: give its"):
            with_bundles(load_settings(values))
    with pytest.raises(UserError, match=f"{flag} is for one model: export the others"):
        _used(fake, "acme/one", "acme/two", **{name: value})


def test_options_reach_the_answer(
    checkpoint: Exported, tmp_path: Path, hub: Hub, capfd: pytest.CaptureFixture[str]
) -> None:
    """`classify --labels` of a checkpoint answers with these labels; the embedded model refuses.

    No hub is asked for a local one, nor for the repository that it names, which may be private.
    """
    variables = _environment(hub, tmp_path)
    source = shutil.copytree(checkpoint.source, tmp_path / "source")
    configure(source, _name_or_path="acme/private")
    labels = ("--labels", "a,b,c")
    code, answer, told = _classified(str(source), variables, ROOT, *labels, "--json")
    assert code == 0, told
    assert [*json.loads(answer)["scores"]] == ["a", "b", "c"]
    assert hub.requests == []
    assert main(["classify", *labels, "love"]) == 1
    assert "the embedded model is a bundle, and --labels cannot change it" in capfd.readouterr().err


def test_what_an_export_had_to_guess_is_said_at_each_start(
    fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The warnings are kept in the manifest; what was only renamed is not repeated."""
    _used(fake, "acme/gone")
    capsys.readouterr()
    _used(fake, "acme/gone")
    assert capsys.readouterr().out == "acme/gone: warning: it has no names\n"


def test_a_moved_branch_is_fetched(
    fake: Path,
    hub: Hub,
    checkpoint: Exported,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A start names the commit that is kept. --refresh fetches the one to which main has moved.

    It fetches nothing if main has not moved, and an error says why the hub does not tell.
    """
    caplog.set_level("INFO")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    commit = hub.add(REPO, checkpoint.source)
    monkeypatch.setenv("COMMIT", "0" * 40)
    (bundle,) = _used(fake, REPO)
    assert (
        f"{REPO}, commit {'0' * 40} of 2022-09-21, is kept in {bundle}; --refresh fetches it"
        in caplog.text
    )
    monkeypatch.setenv("COMMIT", commit)
    _used(fake, REPO)
    assert hub.requests == []
    capsys.readouterr()
    assert _used(fake, REPO, refresh=True) == [bundle]
    assert f"exporting {REPO}" in capsys.readouterr().out
    assert f"{REPO}, commit {commit} of 2022-09-21, is kept in" in caplog.text
    _used(fake, REPO, refresh=True)
    assert "exporting" not in capsys.readouterr().out
    for status, cure in [(401, "; set HF_TOKEN to a token that may read it, or"), (503, ";")]:
        hub.fail(status, times=1)
        with pytest.raises(UserError) as caught:
            _used(fake, REPO, refresh=True)
        said = str(caught.value)
        assert said.startswith(f"{REPO} cannot be refreshed: ")
        assert f"'{status} " in said
        assert said.endswith(f"{cure} leave out --refresh to use what is kept")


def test_only_a_branch_or_tag_is_refreshed(fake: Path, checkpoint: Exported) -> None:
    """A directory and the embedded model have no newer commit: the error says what has."""
    for model in (str(checkpoint.bundle), str(checkpoint.source), f"{REPO}@{'a' * 40}"):
        with pytest.raises(UserError, match="--refresh is for a branch or tag of the hub"):
            _used(fake, model, refresh=True)
