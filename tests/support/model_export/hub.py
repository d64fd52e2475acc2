"""A model hub on the loopback interface: the protocol of the real one, for directories of files.

By hand, to follow the README without the real hub::

    python -m tests.support.model_export.hub ORG/NAME=path/to/checkpoint
"""

import argparse
import hashlib
import json
import math
import re
import threading
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self, cast
from urllib.parse import unquote, urlsplit

# Large files are handed out by another host, after a redirect.
LARGE = (".safetensors", ".bin", ".h5", ".msgpack", ".onnx", ".model")
PIECE = 1 << 20
LAST_MODIFIED = "2022-09-21T10:15:00.000Z"  # of every commit
Part = Literal["api", "resolve", "cdn"]


@dataclass(frozen=True)
class HubRequest:
    """What a client asked; ``name`` is the file, for all but the API."""

    method: str
    path: str
    part: Part
    name: str
    range: str | None
    authorization: str | None


@dataclass
class Repository:
    """Commits of a model and the refs that point to them."""

    commits: dict[str, Path] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    token: str | None = None  # needed to see the repository at all
    gated: bool = False  # listed for everyone, files for nobody


@dataclass
class HubFault:
    """An answer instead of the right one, ``times`` times."""

    part: Part | None
    name: str | None
    status: int
    headers: dict[str, str]
    times: float


@dataclass
class Cut:
    """A transfer that ends, or halts, half-way, ``times`` times."""

    name: str
    halt: bool
    times: float


class Hub:
    """The hub: repositories, what was asked, and the faults to come."""

    def __init__(self, port: int = 0) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[HubRequest] = []
        self.tokens: set[str] = set()  # others are refused
        self._faults: list[HubFault] = []
        self._cuts: list[Cut] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._servers = [_Server(self, port), _Server(self, 0)]
        self.url, self.cdn_url = (f"http://127.0.0.1:{s.server_port}" for s in self._servers)
        self._threads = [
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            for server in self._servers
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()

    def add(self, repo_id: str, directory: Path, ref: str = "main") -> str:
        """Commit a directory to a ref of a repository; returns the commit."""
        digest = hashlib.sha1(repo_id.encode(), usedforsecurity=False)
        for path in _files(directory):
            digest.update(f"{path} {_etag(directory / path)}\n".encode())
        repository = self.repositories.setdefault(repo_id, Repository())
        repository.commits[digest.hexdigest()] = directory
        repository.refs[ref] = digest.hexdigest()
        return digest.hexdigest()

    def fail(
        self,
        status: int,
        *,
        part: Part | None = None,
        name: str | None = None,
        times: float = math.inf,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Answer requests for this part or file with an error."""
        self._faults.append(HubFault(part, name, status, headers or {}, times))

    def cut(self, name: str, *, times: float = 1, halt: bool = False) -> Cut:
        """Close the connection in the middle of a file, or keep it and send no more."""
        self._cuts.append(Cut(name, halt, times))
        return self._cuts[-1]

    def fetched(self) -> list[str]:
        """Names of the files whose contents were asked for, in order."""
        seen = [r for r in self.requests if r.method == "GET" and r.part != "api"]
        return [request.name for request in seen]

    def take_fault(self, request: HubRequest) -> HubFault | None:
        """Note the request; the fault it meets, if any."""
        with self._lock:
            self.requests.append(request)
            for fault in self._faults:
                fits = fault.part in (None, request.part) and fault.name in (None, request.name)
                if fits and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def take_cut(self, name: str) -> Cut | None:
        """The cut this transfer meets, if any."""
        with self._lock:
            for cut in self._cuts:
                if cut.name == name and cut.times > 0:
                    cut.times -= 1
                    return cut
        return None

    def wait_for_close(self) -> None:
        """Halt a transfer until the hub closes."""
        self._closing.wait()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.hub = hub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002 (the base's name)
        """Nothing: a test reads what was recorded."""

    def do_HEAD(self) -> None:
        self._do()

    def do_GET(self) -> None:
        self._do()

    def _do(self) -> None:
        try:
            self._answer()
        except (BrokenPipeError, ConnectionResetError):  # the client left
            self.close_connection = True

    def _answer(self) -> None:
        hub = cast(_Server, self.server).hub
        path = urlsplit(self.path).path
        api = re.fullmatch(r"/api/models/([^/]+(?:/[^/]+)?)(?:/revision/([^/]+))?", path)
        if api and api[1].endswith("/revision"):  # a name without organisation
            api = re.fullmatch(r"/api/models/([^/]+)/revision/([^/]+)", path)
        file = re.fullmatch(r"/([^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)", path)
        found = api or file
        if path.startswith("/cdn/"):
            _, _, repo_id, revision, name = map(unquote, path.split("/", 4))
            part: Part = "cdn"
        elif found:
            repo_id, revision = found[1], unquote(found[2] or "main")
            part, name = ("api", "") if api else ("resolve", unquote(found[3]))
        else:
            return self._refuse(404)
        request = HubRequest(
            self.command, path, part, name, self.headers["Range"], self.headers["Authorization"]
        )
        if fault := hub.take_fault(request):
            return self._refuse(fault.status, **fault.headers)

        repository = hub.repositories.get(repo_id)
        if part != "cdn":  # whose addresses are signed
            token = (request.authorization or "").removeprefix("Bearer ")
            if token and token not in hub.tokens:
                message = "Invalid credentials in Authorization header"
                return self._refuse(401, **{"X-Error-Message": message})
            if repository is None or repository.token not in (None, token):
                code, message = "RepoNotFound", "Repository not found"
                headers = {"X-Error-Code": code, "X-Error-Message": message}
                return self._refuse(404 if token else 401, **headers)
            if repository.gated and part == "resolve":
                return self._refuse(403 if token else 401, **{"X-Error-Code": "GatedRepo"})
        if repository is None:
            return self._refuse(404)
        commit = repository.refs.get(revision, revision)
        directory = repository.commits.get(commit)
        if directory is None:
            return self._refuse(404, **{"X-Error-Code": "RevisionNotFound"})
        if part == "api":
            return self._send_info(repo_id, commit, directory, repository)
        if name not in _files(directory):
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
            return self._refuse(404, **headers)
        if part == "resolve" and name.endswith(LARGE):
            return self._redirect(hub, repo_id, commit, directory / name, name)
        return self._send_file(hub, commit, directory / name, name)

    def _refuse(self, status: int, **headers: str) -> None:
        self._send(status, {"Content-Type": "text/plain", **headers})

    def _send_info(
        self, repo_id: str, commit: str, directory: Path, repository: Repository
    ) -> None:
        info: dict[str, Any] = {
            "_id": commit[:24],
            "id": repo_id,
            "modelId": repo_id,
            "sha": commit,
            "lastModified": LAST_MODIFIED,
            "private": repository.token is not None,
            "gated": "manual" if repository.gated else False,
            "disabled": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [{"rfilename": name} for name in _files(directory)],
        }
        self._send(200, {"Content-Type": "application/json"}, json.dumps(info).encode())

    def _redirect(self, hub: Hub, repo_id: str, commit: str, path: Path, name: str) -> None:
        quoted = repo_id.replace("/", "%2F")
        headers = {
            "Location": f"{hub.cdn_url}/cdn/{quoted}/{commit}/{name}",
            "X-Repo-Commit": commit,
            "X-Linked-ETag": f'"{_etag(path)}"',
            "X-Linked-Size": str(path.stat().st_size),
        }
        self._send(302, headers)

    def _send_file(self, hub: Hub, commit: str, path: Path, name: str) -> None:
        size = path.stat().st_size
        start, end = 0, size
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if asked:
            start, end = int(asked[1]), min(size, int(asked[2] or size) + 1)
            if start >= size:
                return self._refuse(416, **{"Content-Range": f"bytes */{size}"})
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{_etag(path)}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.end_headers()
        if self.command == "HEAD":
            return None
        cut = hub.take_cut(name)
        left = (end - start) // 2 if cut else end - start
        with path.open("rb") as file:
            file.seek(start)
            while left and (piece := file.read(min(PIECE, left))):
                self.wfile.write(piece)
                left -= len(piece)
        if cut:
            self.close_connection = True
            if cut.halt:
                hub.wait_for_close()
        return None

    def _send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _files(directory: Path) -> list[str]:
    paths = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in paths)


def _etag(path: Path) -> str:
    """As the real hub: SHA-256 of a large file, git's object id of a small one."""
    return _etag_of(path, path.stat().st_mtime_ns)


@cache  # the real hub does not read a file for each request either
def _etag_of(path: Path, _changed: int) -> str:
    if path.name.endswith(LARGE):
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    content = path.read_bytes()
    header = f"blob {len(content)}\0".encode()
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


def main() -> None:
    """Serve directories until interrupted, and say how to use them."""
    parser = argparse.ArgumentParser(
        "python -m tests.support.model_export.hub", description=__doc__.splitlines()[0]
    )
    parser.add_argument("models", nargs="+", metavar="[ORG/NAME=]DIRECTORY")
    parser.add_argument("--port", type=int, default=0, help="(default: any)")
    options = parser.parse_args()
    with Hub(options.port) as hub:
        for model in options.models:
            repo_id, _, directory = model.rpartition("=")
            path = Path(directory).resolve()
            if not path.is_dir():
                parser.error(f"{directory} is not a directory")
            commit = hub.add(repo_id or path.name, path)
            print(f"# {repo_id or path.name} at {commit}")
        print(f"export HF_ENDPOINT={hub.url}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
