"""Finding checkpoints: which files are downloaded or resumed, and which errors the user reads.

The hub's client reads its environment variables at import, so each test has processes of its own.
"""

import json
import math
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path

import pytest
from sentiment_export.checkpoint.checkpoint import find_checkpoint, load_checkpoint
from sentiment_export.checkpoint.hub import FAILURES, UNREACHABLE, explain, is_outage, with_retries
from sentiment_export.checkpoint.layout import origin
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.errors import UserError
from sentiment_service.settings.settings import CheckpointOptions

from checks.support.tls import make_certificate
from tests.support.checkpoints import make_checkpoint
from tests.support.model_export.hub import Hub, Part
from tests.support.serving import Program, installed
from tests.support.tiny_bundle import make_bundle

ROOT = Path(__file__).parents[3]
REPO = "acme/tiny-sentiment"
BUNDLE = "acme/bundle"
GOOD, OLD = "hf_good", "hf_old"  # tokens
SCRIPT = """
import sys
from sentiment_service.errors import UserError
from sentiment_export.checkpoint.checkpoint import find_checkpoint
assert not {"torch", "transformers"} & set(sys.modules)
try:
    print(find_checkpoint(*sys.argv[1:]))
except UserError as error:
    sys.exit(str(error))
"""
EXPORT = """
import sys
from sentiment_export.cli import main
sys.exit(main(sys.argv[1:]))
"""
# Each line forks a process, in which code runs with these words and variables, and whose output
# goes to these files. What all import, but for the hub's client, is imported once.
FORKING = """
import json, os, sys
import sentiment_export.checkpoint.checkpoint, sentiment_export.cli
assert "huggingface_hub" not in sys.modules
for line in sys.stdin:
    if not os.fork():
        code, sys.argv[1:], variables, *files = json.loads(line)
        os.environ.clear()
        os.environ.update(variables)
        for number, path in enumerate(files, 1):
            os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
        exec(code, {})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
NO_WAIT = "import time; time.sleep = lambda seconds: None\n"
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
RAISING = """
import sentiment_export.checkpoint.hub
def fail(*words, **options):
    raise {}
sentiment_export.checkpoint.hub.hf_hub_download = fail
"""
CONFIG = b'{"model_type": "bert"}'
CHUNK = 10 * 2**20  # what the client writes at once


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with no repositories yet."""
    with Hub() as hub:
        yield hub


@pytest.fixture
def checkpoint(hub: Hub, tmp_path: Path) -> Path:
    """The files of a repository of the hub, with much that an export does not need."""
    files = write_files(
        tmp_path / "checkpoint",
        **{
            "config.json": CONFIG,
            "tokenizer.json": b'{"a": 1}',
            "tokenizer_config.json": b'{"b": 2}',
            "vocab.json": b'{"c": 3}',
            "merges.txt": b"a b\n",
            "model.safetensors": b"safe" * 1000,
            "pytorch_model.bin": b"pickled" * 1000,
            "tf_model.h5": b"tensorflow",
            "flax_model.msgpack": b"flax",
            "README.md": b"# card",
            "onnx/model.onnx": b"graph",
        },
    )
    hub.add(REPO, files)
    return files


@pytest.fixture
def bundle(hub: Hub, tmp_path: Path) -> Path:
    """The fp32 bundle of a repository."""
    made = make_bundle(tmp_path / "bundle")
    (made / "README.md").touch()
    hub.add(BUNDLE, made)
    return made


@pytest.fixture
def weights(hub: Hub, tmp_path: Path) -> bytes:
    """The weights of a repository, of more bytes than the client writes at once."""
    content = os.urandom(2**20) * 24
    files = {"config.json": CONFIG, "model.safetensors": content}
    hub.add(REPO, write_files(tmp_path / "large", **files))
    return content


NEEDED = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "model.safetensors",
]


def write_files(directory: Path, **files: bytes) -> Path:
    """A directory of files."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


_parents: list[Program] = []


@pytest.fixture(scope="module", autouse=True)
def _parent() -> Iterator[None]:
    """The process that those of ``ended`` are forked from."""
    command, pipes = [sys.executable, "-c", FORKING], subprocess.PIPE
    with Program(command, cwd=ROOT, text=True, bufsize=1, stdin=pipes, stdout=pipes) as parent:
        _parents.append(parent)
        yield
        _parents.clear()


def ended(
    home: Path,
    endpoint: str,
    *words: str,
    before: str = "",
    script: str = SCRIPT,
    **environment: str,
) -> tuple[int, str, str]:
    """Look for a checkpoint in another process, with its cache under ``home``.

    Returns its exit code, what it wrote and its errors.
    """
    kept = {k: v for k, v in os.environ.items() if "HF_" not in k and "proxy" not in k.lower()}
    variables = {**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), **environment}
    (parent,), files = _parents, [home / "output", home / "errors"]
    assert parent.stdin
    assert parent.stdout
    parent.stdin.write(json.dumps([before + script, words, variables, *map(str, files)]) + "\n")
    code = int(parent.stdout.readline())
    output, errors = (path.read_text() for path in files)
    return code, output, errors


def find(home: Path, endpoint: str, *words: str, before: str = "", **environment: str) -> Path:
    """The checkpoint found by another process."""
    code, output, errors = ended(home, endpoint, *words, before=before, **environment)
    assert code == 0, errors
    return Path(output.strip())


def refusal(home: Path, endpoint: str, *words: str, before: str = "", **environment: str) -> str:
    """The error of another process: its last line, alone but for the client's own warnings."""
    code, output, errors = ended(home, endpoint, *words, before=before, **environment)
    assert (code, output) == (1, "")
    assert "Traceback" not in errors
    return errors.splitlines()[-1]


def export(
    home: Path, endpoint: str, *words: str, before: str = "", **environment: str
) -> tuple[int | None, str]:
    """The exit code of sentiment-export with these words, and the last line that it prints."""
    given = {"before": before, "script": EXPORT, **environment}
    code, output, errors = ended(home, endpoint, *words, **given)
    return code, (output + errors).splitlines()[-1]


def closed_port() -> str:
    """An address at which nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def read(directory: Path) -> dict[str, bytes]:
    """Contents by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("repo_id", [REPO, "tiny"])  # the oldest models have no organisation
def test_only_needed_files_are_downloaded_and_once(
    hub: Hub, checkpoint: Path, tmp_path: Path, repo_id: str
) -> None:
    """Config, tokenizer and one form of weights, of the commit that main points to.

    A second call only asks the API whether the commit is still the same.
    """
    commit = hub.add(repo_id, checkpoint)
    path = find(tmp_path, hub.url, repo_id)
    assert origin(path) == (repo_id, commit)
    assert read(path) == {name: (checkpoint / name).read_bytes() for name in NEEDED}
    assert hub.fetched() == NEEDED
    hub.requests.clear()
    assert find(tmp_path, hub.url, repo_id) == path
    assert [request.part for request in hub.requests] == ["api"]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, f"{REPO}: config.json has no model_type, so its architecture is unknown; add"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, f"{REPO} is a BertFor"),
    ],
)
def test_what_is_not_exported_is_not_downloaded(
    hub: Hub, checkpoint: Path, tmp_path: Path, config: dict[str, object], why: str
) -> None:
    """config.json decides: nothing else is fetched of a checkpoint that the export refuses."""
    (checkpoint / "config.json").write_text(json.dumps(config))
    hub.add(REPO, checkpoint)
    assert refusal(tmp_path, hub.url, REPO).startswith(why)
    assert hub.fetched() == ["config.json"]


def test_revisions(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """A branch, a commit and a pull request's ref each give their own files, also offline."""
    other = write_files(
        tmp_path / "other",
        **{
            "config.json": b'{"model_type": "bert", "use_cache": true}',
            "model.safetensors": b"other",
        },
    )
    main = hub.add(REPO, checkpoint)
    changed = hub.add(REPO, other, ref="refs/pr/1")
    hub.add(REPO, other, ref="dev")
    for revision, commit in [("refs/pr/1", changed), ("dev", changed), (main, main)]:
        path = find(tmp_path, hub.url, REPO, revision)
        assert origin(path) == (REPO, commit)
        assert find(tmp_path, closed_port(), REPO, revision, HF_HUB_OFFLINE="1") == path


@pytest.mark.parametrize(
    ("index", "shards"),
    [
        (
            "model.safetensors.index.json",
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ),
        (
            "pytorch_model.bin.index.json",
            ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"],
        ),
    ],
)
def test_shards(hub: Hub, tmp_path: Path, index: str, shards: list[str]) -> None:
    """The index is read for the names of the shards; a copy that lacks one is not whole.

    A repository that lacks one is refused with its name.
    """
    weight_map = {"a": shards[0], "b": shards[1], "c": shards[1]}
    files = {index: json.dumps({"weight_map": weight_map}).encode(), "config.json": CONFIG}
    files |= {name: name.encode() for name in shards}
    source = write_files(tmp_path / "source", **files, **{"model-old.safetensors": b"stale"})
    hub.add(REPO, source)
    path = find(tmp_path, hub.url, REPO)
    assert read(path) == files

    (path / shards[1]).unlink()
    error = refusal(tmp_path, hub.url, REPO, HF_HUB_OFFLINE="1")
    assert f"no complete copy of {REPO} at main" in error

    (source / shards[1]).unlink()
    hub.add(REPO, source)
    error = refusal(tmp_path, hub.url, REPO)
    assert error == f"{REPO} has no {shards[1]}, in which {index} has its weights"


def test_a_cut_transfer_is_resumed(hub: Hub, weights: bytes, tmp_path: Path) -> None:
    """What came before the cut is kept, and the file is the same in the end."""
    hub.cut("model.safetensors")
    path = find(tmp_path, hub.url, REPO)
    assert (path / "model.safetensors").read_bytes() == weights
    ranges = [r.range for r in hub.requests if r.part == "cdn" and r.method == "GET"]
    assert ranges == [None, f"bytes={CHUNK}-"]


def test_a_transfer_that_stays_cut(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """After some tries the user reads that the same command may work, and it does."""
    cut = hub.cut("model.safetensors", times=math.inf)
    error = refusal(tmp_path, hub.url, REPO, before=NO_WAIT)
    assert error == f"the download of {REPO} was cut 5 times; run the same command again"
    assert hub.fetched().count("model.safetensors") >= 5  # newer clients try again themselves
    cut.times = 0
    assert read(find(tmp_path, hub.url, REPO)).keys() == set(NEEDED)


def test_a_private_model_needs_a_token(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """Without the token it looks absent; HF_TOKEN is sent to the hub, and not to its CDN."""
    hub.repositories[REPO].token = GOOD
    hub.tokens = {GOOD}
    assert "if it is private, set HF_TOKEN" in refusal(tmp_path, hub.url, REPO)
    hub.requests.clear()
    assert read(find(tmp_path, hub.url, REPO, HF_TOKEN=GOOD)).keys() == set(NEEDED)
    sent = {(request.part, request.authorization) for request in hub.requests}
    assert sent == {("api", f"Bearer {GOOD}"), ("resolve", f"Bearer {GOOD}"), ("cdn", None)}


def test_a_refused_token(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """A token that expired is named as the cause, even for a public model, and never shown.

    So is one with a character that no token has.
    """
    for token in (OLD, "“hf”"):
        error = refusal(tmp_path, hub.url, REPO, HF_TOKEN=token)
        assert error.startswith(f"the token is not one for {hub.url}; set HF_TOKEN to a valid one")
        assert token not in error


def _gate(hub: Hub) -> None:
    hub.repositories[REPO].gated = True


def _forget(hub: Hub) -> None:
    del hub.repositories[REPO]


@pytest.mark.parametrize("token", ["", GOOD])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_gate, "{repo} is gated; accept its conditions on {url}/{repo} and set HF_TOKEN to"),
        # A token that may not read this model: 403 without a code.
        (lambda hub: hub.fail(403), "{url} denies access to {repo}; set HF_TOKEN to a token"),
        # It may have been meant as a directory, or be private.
        (
            _forget,
            "there is no directory {repo}, and no model {repo} on {url}; if it is private, set HF_",
        ),
    ],
)
def test_a_model_that_may_not_be_read(
    hub: Hub, checkpoint: Path, tmp_path: Path, change: Callable[[Hub], None], says: str, token: str
) -> None:
    """The error says what a token would need, signed in (403 or 404) or not (401)."""
    hub.tokens = {GOOD}
    change(hub)
    for url in (hub.url, hub.url.replace("127.0.0.1", "LocalHost")):
        error = refusal(tmp_path, url, REPO, HF_TOKEN=token)
        assert error.startswith(says.format(repo=REPO, url=url))


def test_an_unknown_revision(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """It is named, and no other revision is taken instead, cached or not."""
    find(tmp_path, hub.url, REPO)
    for revision in ("v9", "0" * 40):
        error = refusal(tmp_path, hub.url, REPO, revision)
        assert error.startswith(f"{REPO} has no revision {revision}; give a branch, a tag or a com")


def test_patience(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """429 is waited out, wherever it is met."""
    parts: tuple[Part, ...] = ("api", "resolve", "cdn")
    for part in parts:
        hub.fail(429, part=part, times=2, headers={"Retry-After": "0"})
    assert read(find(tmp_path, hub.url, REPO)).keys() == set(NEEDED)


@pytest.mark.parametrize(
    ("header", "value", "waits"),
    [
        ("Retry-After", "7", [7.0] * 4),
        ("Retry-After", "3600", [60.0] * 4),
        ("RateLimit", '"api";r=0;t=9', [9.0] * 4),
        ("X-None", "", [2.0, 4.0, 8.0, 16.0]),
    ],
)
def test_patience_ends(
    hub: Hub, checkpoint: Path, tmp_path: Path, header: str, value: str, waits: list[float]
) -> None:
    """It waits as long as the hub asks, a minute at most, five tries in all."""
    hub.fail(429, part="api", headers={header: value})
    assert _waits(tmp_path, hub) == waits


def _waits(home: Path, hub: Hub) -> list[float]:
    """For how long a process waits for a hub that stays busy, before it says so."""
    before = "import time; time.sleep = lambda s: print('slept', s, file=sys.stderr)\n"
    _, _, errors = ended(home, hub.url, REPO, before="import sys\n" + before)
    assert errors.splitlines()[-1].startswith(f"{hub.url} is busy or fails (status 429);")
    return [float(line.split()[1]) for line in errors.splitlines() if line.startswith("slept")]


def test_a_hub_out_of_order(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """A 5xx is tried again; one that lasts is said."""
    hub.fail(416, name="config.json", times=1)  # as where the cache has more than the file
    assert "; run the same command again, and if that does not" in refusal(tmp_path, hub.url, REPO)
    hub.fail(503, part="api", times=1, headers={"Retry-After": "0"})
    hub.fail(500, name="config.json")
    error = refusal(tmp_path, hub.url, REPO, before=NO_WAIT)
    assert error.startswith(f"{hub.url} is busy or fails (status 500); run the same command again")


def test_an_unreachable_hub(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """Without a copy it is an error that names the address; with a whole one, a warning."""
    nobody = closed_port()
    expected = f"cannot reach {nobody} (ConnectError)"
    error = refusal(tmp_path, nobody, REPO)
    assert error.startswith(f"{expected}; check the network, the proxy (HTTPS_PROXY) and HF_ENDPO")
    assert error.rstrip().endswith(f"or give a directory: there is none named {REPO}")
    path = find(tmp_path, hub.url, REPO)
    assert ended(tmp_path, nobody, REPO) == (
        0,
        f"{path}\n",
        f"{expected}; using the copy in {path}\n",
    )
    (path / "model.safetensors").unlink()
    assert refusal(tmp_path, nobody, REPO).startswith(expected)


def test_not_a_hub(hub: Hub, tmp_path: Path) -> None:
    """A page that is not a hub's, an endpoint without a scheme, a proxy that nobody runs."""
    hub.add(
        REPO,
        write_files(tmp_path / "source", **{"config.json": CONFIG, "model.safetensors": b"safe"}),
    )
    parts: tuple[Part, ...] = ("resolve", "api")
    for part, status in product(parts, (200, 404, 407)):
        hub.fail(status, part=part, times=1)
        error = refusal(tmp_path, hub.url, REPO)
        assert error.startswith(f"{hub.url} does not answer like a model hub")
        assert (f"(status {status}); check HF_ENDPOINT" in error) == (status != 200)
    error = refusal(tmp_path, "localhost:1", REPO)
    assert error.startswith(
        "cannot reach localhost:1 (UnsupportedProtocol); check the network, the"
    )
    error = refusal(tmp_path, "http://hub.invalid", REPO, http_proxy=closed_port())
    assert error.startswith("cannot reach http://hub.invalid (ConnectError); check the network")


@pytest.fixture
def untrusted(tmp_path: Path) -> Iterator[str]:
    """The address of a server with a self-signed certificate, as a company's proxy has."""
    certificate, key = make_certificate(tmp_path, "proxy", installed("openssl", "openssl"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_certificates(untrusted: str, tmp_path: Path) -> None:
    """An untrusted one is called that, and SSL_CERT_FILE is named, which helps; so is one that it
    names in vain."""
    error = refusal(tmp_path, untrusted, REPO)
    assert error == (
        f"the certificate of {untrusted} is not trusted (self-signed certificate); let "
        "SSL_CERT_FILE name a file with that of its issuer, such as your company"
    )
    trusted = {"SSL_CERT_FILE": str(tmp_path / "proxy.pem")}
    assert "certificate" not in refusal(tmp_path, untrusted, REPO, before=NO_WAIT, **trusted)
    for name in ("none.pem", "proxy.key", "."):
        error = refusal(tmp_path, untrusted, REPO, SSL_CERT_FILE=str(tmp_path / name))
        assert error.startswith(f"the certificates in SSL_CERT_FILE, {tmp_path / name}, cannot be")


def test_a_host_of_large_files_that_denies_access(
    hub: Hub, checkpoint: Path, tmp_path: Path
) -> None:
    """It is named in the place of the hub, and no token is asked for, which it would not get."""
    hub.fail(403, part="cdn")
    error = refusal(tmp_path, hub.url, REPO)
    assert error.startswith(f"{hub.cdn_url} denies access to {REPO}; check the network and the pro")


def test_offline(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """HF_HUB_OFFLINE: nothing is asked; a whole copy is taken silently, its absence is said.

    So it is with the variable of transformers, which the hub's client obeys.
    """
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        error = refusal(tmp_path, hub.url, REPO, **{variable: "1"})
        assert error == (
            f"{variable} is set, and {tmp_path / 'hub'} has no complete copy of {REPO} at main; "
            f"unset it to download one, or give a directory: there is none named {REPO}"
        )
    assert hub.requests == []
    path = find(tmp_path, hub.url, REPO)
    hub.requests.clear()
    assert ended(tmp_path, hub.url, REPO, HF_HUB_OFFLINE="1") == (0, f"{path}\n", "")
    assert hub.requests == []


def test_a_new_commit_cut_short_is_not_replaced_by_an_old_one(
    hub: Hub, checkpoint: Path, tmp_path: Path
) -> None:
    """Once the hub has named a commit, it is that one or an error; offline, still the old one."""
    old = find(tmp_path, hub.url, REPO)
    (checkpoint / "config.json").write_bytes(b'{"model_type": "bert", "new": 1}')
    hub.add(REPO, checkpoint)
    hub.fail(500, name="config.json")
    assert "fails (status 500)" in refusal(tmp_path, hub.url, REPO, before=NO_WAIT)
    assert find(tmp_path, hub.url, REPO, HF_HUB_OFFLINE="1") == old


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (LIMITED, "File too large"),
        (
            RAISING.format("RuntimeError('IO: No space left on device')"),
            "IO: No space left on device",
        ),
    ],
)
def test_a_full_disk(hub: Hub, checkpoint: Path, tmp_path: Path, before: str, reason: str) -> None:
    """The error names the cache and how to move it."""
    error = refusal(tmp_path, hub.url, REPO, before=before)
    assert error == (
        f"cannot keep {REPO} in the cache {tmp_path / 'hub'}: {reason}; set HF_HUB_CACHE to a "
        "directory that has room and can be written"
    )


def test_a_cache_that_cannot_be_made(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """It is called that, wherever on its path the fault is; a token's file is called by its name.

    Where the variable says where the cache is, it is made.
    """
    (file := tmp_path / "file").touch()
    for cache in (file, file / "hub", file / "lower" / "hub"):
        error = refusal(tmp_path, hub.url, REPO, HF_HUB_CACHE=str(cache))
        assert error.startswith(
            f"cannot keep {REPO} in the cache {cache}: Not a directory; set HF_"
        )
    find(tmp_path, hub.url, REPO, HF_HUB_CACHE=str(tmp_path / "other"))
    (tmp_path / "token").mkdir()
    assert refusal(tmp_path, hub.url, REPO) == f"{tmp_path / 'token'}: Is a directory"


def test_a_store_of_large_files_that_refuses(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """Its client raises errors of the system's kinds, which name no file of this machine."""
    for kind in ("PermissionError", "FileNotFoundError"):
        before = RAISING.format(f"{kind}('object not found')")
        error = refusal(tmp_path, hub.url, REPO, before=before)
        assert error.startswith(f"cannot download {REPO}: object not found; run the same command")


def test_a_model_without_readable_weights(hub: Hub, tmp_path: Path) -> None:
    """Nothing of it is downloaded; the error says what makes weights of TensorFlow readable."""
    hub.add(REPO, write_files(tmp_path / "s", **{"config.json": CONFIG, "tf_model.h5": b"tf"}))
    why = refusal(tmp_path, hub.url, REPO)
    assert f"{REPO} has no weights" in why
    assert "tf_model.h5 cannot be read: load it in transformers 4 with from_tf=True" in why
    assert hub.fetched() == []


def test_a_hub_cache_as_source(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """A model's directory in a cache gives the snapshot of a revision, and lists them otherwise."""
    commit = hub.add(REPO, checkpoint)
    path = find(tmp_path, hub.url, REPO)
    model = tmp_path / "hub" / "models--acme--tiny-sentiment"
    assert path.parent.parent == model
    assert find_checkpoint(str(model)) == path
    assert find_checkpoint(str(model), commit) == path
    assert origin(find_checkpoint(str(model), "main")) == (REPO, commit)
    with pytest.raises(UserError) as caught:
        find_checkpoint(str(model), "dev")
    assert str(caught.value) == f"{model} has no revision dev; it holds {commit}, main"


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors", "onnx/model.onnx"]
)
def test_a_damaged_file_in_the_cache_is_deleted_there(tmp_path: Path, name: str) -> None:
    """To run the command again does not help: the hub's client takes the file for whole.

    To delete the model there might not help, either: models share files.
    """
    whole = make_checkpoint(tmp_path / "whole", "bert")
    (whole / "onnx").mkdir()
    (whole / name).write_bytes(b"{ damaged")
    model = tmp_path / "models--acme--tiny"
    snapshot = Path(shutil.copytree(whole, model / "snapshots" / ("a1" * 20)))
    (blob := tmp_path / "blob").hardlink_to(snapshot / name)
    (snapshot / name).unlink()
    (snapshot / name).symlink_to(blob)
    options = CheckpointOptions(onnx=name if name.endswith(".onnx") else "")
    cure = f"; delete {blob} and download it again"
    for path in (snapshot, whole):
        with pytest.raises(UserError, match=re.escape(str(path / name))) as caught:
            load_checkpoint(path, options)
        assert str(caught.value).endswith(cure) == (path == snapshot)


def test_a_local_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken as it is, also where its name could be a hub id, and has no revisions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert find_checkpoint("org/name") == Path("org/name")
    assert origin(Path("org/name")) is None
    with pytest.raises(UserError, match="local directory, which has no revision main: leave"):
        find_checkpoint("org/name", "main")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        *(
            ([source], f"{source!r} is neither a directory nor a hub id such as ORG/NAME")
            for source in ("", "no/such/directory", "./mine", "a b", "https://hub/org/name", "a--b")
        ),
        ([__file__], "is a file; give the checkpoint directory that holds it"),
        # A revision is part of a path in the cache; none leads out of it.
        *(([REPO, revision], "is not a revision") for revision in ("", "../../x", "/etc")),
    ],
)
def test_nonsense(words: list[str], says: str) -> None:
    """What can be neither a directory nor a model of the hub is not asked for."""
    with pytest.raises(UserError, match=re.escape(says)):
        find_checkpoint(*words)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"/c/models--acme--tiny/snapshots/{'a1' * 20}", ("acme/tiny", "a1" * 20)),
        (f"/c/models--tiny/snapshots/{'a1' * 20}", ("tiny", "a1" * 20)),
        ("/c/models--acme--tiny/snapshots/main", None),
        (f"/c/datasets--acme--tiny/snapshots/{'a1' * 20}", None),
        (f"/c/models--acme--tiny/blobs/{'a1' * 20}", None),
        ("/", None),
    ],
)
def test_origin(path: str, expected: tuple[str, str] | None) -> None:
    """Hub id and commit come from a snapshot's path; other paths have none."""
    assert origin(Path(path)) == expected


def test_a_connection_that_is_reset_is_tried_again() -> None:
    """The hub's client gives up where it is reset within a file."""
    reset = sys.modules[UNREACHABLE.__module__.partition(".")[0]].ReadError("reset")
    failures = [reset]

    def download() -> str:
        if failures:
            raise failures.pop()
        return "all of it"

    assert with_retries(download, waits=False) == "all of it"


def test_errors_of_the_clients_library_are_explained() -> None:
    """With a request or without, they name the hub and what to check."""
    library = sys.modules[UNREACHABLE.__module__.partition(".")[0]]
    request = library.Request("GET", "http://hub.test:9/api/models/acme/tiny")
    late = library.ReadTimeout("late", request=request)
    for error in (UNREACHABLE("refused"), late):
        assert isinstance(error, FAILURES)
        assert is_outage(error)
        assert re.match(r"cannot reach http.*check the network", explain(error, "a/b", "main"))
    assert "http://hub.test:9 (ReadTimeout)" in explain(late, "a/b", "main")


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--calibrate none.csv --evaluate none.csv", "--evaluate, --calibrate"),
        ("--max-accuracy-loss 0 --reference fp32", "--max-accuracy-loss, --reference"),
        ("--debug-parity", "--debug-parity"),
    ],
)
def test_what_an_export_would_do_is_not_done_to_a_bundle(
    hub: Hub, bundle: Path, tmp_path: Path, words: str, flags: str
) -> None:
    """Flags that only an export can follow are refused by name, and what does their work is named.

    Without them, the bundle is copied.
    """
    given = [BUNDLE, "--output", str(tmp_path / "out")]
    code, line = export(tmp_path, hub.url, *given, *words.split())
    assert code == 1
    assert line == (
        f"sentiment-export: {BUNDLE} is a bundle, which is copied as it is: leave out {flags}, and "
        "use sentiment-export evaluate and calibrate on the copy"
    )
    assert not (tmp_path / "out").exists()
    assert export(tmp_path, hub.url, *given) == (0, f"wrote {tmp_path / 'out'}")


def test_an_output_that_cannot_be_written(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    """It is not taken for the cache."""
    code, line = export(tmp_path, hub.url, BUNDLE, "--output", "/proc/out", "--precision", "fp32")
    assert code == 1
    assert line.startswith("sentiment-export: /proc/.out.partial: ")


def test_a_bundle_without_the_variant(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    """It is refused, with what it has, unless another variant would do: the first is copied."""
    given = [BUNDLE, "--output", str(tmp_path / "out"), "--precision", "int8"]
    code, line = export(tmp_path, hub.url, *given)
    assert code == 1
    assert line.endswith(f"{BUNDLE} has no int8; it has fp32: choose one of these with --precision")
    assert export(tmp_path, hub.url, *given, "--else", "fp16,fp32")[0] == 0
    assert [*Bundle.open(tmp_path / "out").manifest.variants] == ["fp32"]


def test_a_bundle_in_the_cache_needs_no_hub(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    """Offline in silence, and with a warning if nobody answers, the whole copy is copied again.

    A copy that lacks a file is called incomplete, and a branch is not taken for another one. A
    damaged file is to be deleted. What leads out of the cache is no revision.
    """
    copies = [tmp_path / name for name in ("first", "offline", "down")]
    words = [[BUNDLE, "--output", str(copy), "--precision", "fp32"] for copy in copies]
    nobody, offline = closed_port(), {"HF_HUB_OFFLINE": "1"}
    assert export(tmp_path, hub.url, *words[0])[0] == 0
    assert export(tmp_path, hub.url, *words[1], **offline) == (0, f"wrote {copies[1]}")
    code, _, errors = ended(tmp_path, nobody, *words[2], script=EXPORT)
    assert code == 0
    assert errors.startswith(f"cannot reach {nobody} (ConnectError); using the copy in")
    first, *others = [
        {file: (copy / file).read_bytes() for file in ("manifest.json", "onnx/model.onnx")}
        for copy in copies
    ]
    assert others == [first, first]

    says = f"{tmp_path / 'hub'} has no complete copy of {BUNDLE} at"
    assert says + " dev;" in export(tmp_path, hub.url, *words[1], "--revision=dev", **offline)[1]
    (graph,) = (tmp_path / "hub").rglob("snapshots/*/onnx/model.onnx")
    graph.write_bytes(b"damaged")
    says_damaged = f"delete {graph.resolve()} and download it again"
    assert export(tmp_path, hub.url, *words[1])[1].endswith(says_damaged)
    graph.resolve().unlink()
    assert says + " main;" in export(tmp_path, hub.url, *words[1], **offline)[1]
    assert export(tmp_path, hub.url, *words[1])[0] == 0
    out = export(tmp_path, hub.url, *words[1], "--revision=../../x")[1]
    assert out.endswith("'../../x' is not a revision; give a branch, a tag or a commit")
