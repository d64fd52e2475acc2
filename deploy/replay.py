"""Builds the image without Docker: ``sudo python3 deploy/replay.py /var/tmp/replay``.

debootstrap makes the base image, each stage is a directory, and RUN is a chroot. Then the script
starts a container as Docker would: with a process 1, the image's user, and a read-only root with
/tmp in memory. The service must become ready, answer, and exit with 0 on SIGTERM.

Needs root, debootstrap and util-linux. `--target cpu|gpu|export` chooses the image; `--no-serve`
only builds it and prints the sizes of its parts.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from deploy.dockerfile import ROOT, Copy, Run, Stage, context, stages

# Folders that the slim image does not have, and that packages do not install into it.
SLIM = ("doc", "info", "locale", "man", "groff", "linda", "lintian")
# Variables that are passed on to the build, because pip may need an index or a proxy.
PASSED_ON = (
    "PIP_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
MB = 1_000_000


def main() -> int:
    """Build the image, print its sizes and serve; the exit code is 0 if all works."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("work", type=Path, help="empty or new directory, best on a fast disk")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--no-serve", action="store_true")
    options = parser.parse_args()
    work: Path = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    given = dict(argument.split("=", 1) for argument in options.build_arg)
    everything = stages((ROOT / "Dockerfile").read_text(encoding="utf-8"), given)
    image = build(everything, options.target, work)
    weigh(everything[options.target], image, work)
    if not options.no_serve:
        serve(everything[options.target], image)
        if options.target == "gpu":
            refuse(everything[options.target], image)
    return 0


def build(everything: Mapping[str, Stage], name: str, work: Path) -> Path:
    """Build a stage, after the stages that it needs; returns its root directory."""
    root = work / name
    if root.exists():
        return root
    stage = everything.get(name)
    if stage is None:
        return _base(name, work)
    partial = work / f"{name}.partial"
    if partial.exists():
        shutil.rmtree(partial)
    _call("cp", "--archive", "--reflink=auto", build(everything, stage.base, work), partial)
    for step, (env, user, workdir) in zip(stage.steps, stage.contexts, strict=True):
        (partial / workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
        if isinstance(step, Copy):
            _say(f"{name}: COPY {' '.join(step.sources)} {step.target}")
            source = build(everything, step.stage, work) if step.stage else None
            _copy(step, source, partial, workdir)
        else:
            _say(f"{name}: RUN {step.command}")
            _run(step, partial, env, user, workdir)
    (partial / stage.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
    return partial.rename(root)


def _base(image: str, work: Path) -> Path:
    """Make the base image by debootstrap, of the same release and reduced like the slim image."""
    root = work / "base"
    if not root.exists():
        _say(f"debootstrap for {image}")
        partial = work / "base.partial"
        _call("debootstrap", "--variant=minbase", "bookworm", partial)
        for name in SLIM:
            shutil.rmtree(partial / "usr/share" / name, ignore_errors=True)
        lines = "".join(f"path-exclude /usr/share/{name}/*\n" for name in SLIM)
        (partial / "etc/dpkg/dpkg.cfg.d/docker").write_text(lines, encoding="utf-8")
        for name in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
            shutil.rmtree(partial / name)
            (partial / name).mkdir()
        release = (partial / "etc/debian_version").read_text(encoding="utf-8").strip()
        assert f":{release}-" in image, f"the mirror has Debian {release}, the Dockerfile {image}"
        partial.rename(root)
    return root


def _copy(step: Copy, source: Path | None, root: Path, workdir: str) -> None:
    target = root / Path(workdir, step.target).as_posix().lstrip("/")
    if source is not None:  # always one directory
        _call("cp", "--archive", f"{source / step.sources[0].lstrip('/')}/.", _made(target))
        return
    files = list(context())
    for name in step.sources:
        found = [path for path in files if path == name or path.startswith(f"{name}/")]
        assert found, f"COPY {name}: the context has no such file"
        for path in found:
            inner = Path(path).relative_to(name) if path != name else Path(path).name
            _made((target / inner).parent)
            shutil.copy2(ROOT / path, target / inner)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(step: Run, root: Path, env: Mapping[str, str], user: str, workdir: str) -> None:
    passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    certificates = passed.get("PIP_CERT")
    script = f'mount -t proc proc "{root}/proc" && mount -t tmpfs tmpfs "{root}/run"'
    if certificates:
        script += f' && cp "{certificates}" "{root}/run/certificates"'
        passed["PIP_CERT"] = "/run/certificates"
    variables = [f"{name}={value}" for name, value in {"HOME": "/root", **passed, **env}.items()]
    inner = ["chroot", "--userspec", user or "0:0", str(root)]
    inner += ["env", "--ignore-environment", f"--chdir={workdir}", *variables]
    inner += ["/bin/sh", "-c", step.command]
    _call("unshare", "--mount", "sh", "-ec", f'{script} && exec "$@"', "sh", *inner)


def weigh(stage: Stage, image: Path, work: Path) -> None:
    """Print the size of the image and of its parts."""
    total, base = _bytes(image), _bytes(work / "base")
    packages = next((image / "opt/sentiment/lib").glob("python3*/site-packages"))
    print(f"{stage.name}: {total / MB:.0f} MB uncompressed")
    print(f"  {base / MB:6.1f}  base image")
    print(f"  {(_bytes(work / 'python') - base) / MB:6.1f}  Python")
    parts = sorted(((_bytes(path), path.name) for path in packages.iterdir()), reverse=True)
    for size, name in parts[:14]:
        print(f"  {size / MB:6.1f}  {name}")
    print(f"  {sum(size for size, _ in parts[14:]) / MB:6.1f}  {len(parts) - 14} other packages")
    compiled = sum(path.lstat().st_size for path in packages.rglob("*.pyc"))
    print(f"  {compiled / MB:6.1f}  of the packages: compiled Python")


def _bytes(path: Path) -> int:
    if path.is_symlink() or path.is_file():
        return path.lstat().st_size
    inodes = {entry.st_ino: entry.st_size for entry in map(os.lstat, path.rglob("*"))}
    return sum(inodes.values())


def serve(stage: Stage, image: Path) -> None:
    """Start a container and check that the service does what an orchestrator expects."""
    grpc_port = str(_free_port())
    env = stage.env | {"SENTIMENT_PORT": str(_free_port()), "SENTIMENT_GRPC_PORT": grpc_port}
    url = f"http://127.0.0.1:{env['SENTIMENT_PORT']}"
    started = time.monotonic()
    with container(stage, image, env) as (process, pid):
        while (status := _status(f"{url}/health/ready")) != 200:
            assert process.poll() is None, "the service did not start"
            assert time.monotonic() - started < 60, f"not ready after a minute: {status}"
            time.sleep(0.02)
        print(f"ready after {time.monotonic() - started:.2f} s, measuring included")
        body = json.dumps({"inputs": "I love this!"}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{url}/classify", body, headers)  # noqa: S310
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            result = json.load(answer)["results"][0]
        print(f"/classify: {result['label']} {result['score']:.4f}")
        assert result["label"] == "positive"
        status_file = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        print(
            "; ".join(
                line
                for line in status_file.splitlines()
                if line[:5] in ("NSpid", "Uid:\t", "VmHWM")
            )
        )
        inside = ["nsenter", f"--target={pid}", "--mount", "--pid", *_inside(stage, image, env)]
        _call(*inside, *stage.healthcheck)
        print("HEALTHCHECK: healthy")
        script = (ROOT / "deploy/grpc_health.py").read_text(encoding="utf-8")
        _call(*inside, "python", "-c", script, f"localhost:{grpc_port}")
        refused = subprocess.run(
            [*inside, "touch", "/models/x"], capture_output=True, text=True, check=False
        )
        assert "Read-only file system" in refused.stderr, refused.stderr
        print(
            "the root is read-only; in /tmp:",
            [path.name for path in Path(f"/proc/{pid}/root/tmp").iterdir()],
        )
        os.kill(pid, signal.Signals[stage.stop_signal])
        code = process.wait(timeout=30)
        print(f"{stage.stop_signal} to process 1: exit {code}")
        assert code == 0


def refuse(stage: Stage, image: Path) -> None:
    """Ask for CUDA, which no container here has: the image must say what is missing, and stop."""
    with container(stage, image, stage.env | {"SENTIMENT_DEVICE": "cuda"}) as (process, _):
        code = process.wait(timeout=60)
    print(f"SENTIMENT_DEVICE=cuda without a GPU: exit {code}")
    assert code == 1


@contextmanager
def container(
    stage: Stage, image: Path, env: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the image's command as process 1 with a read-only root; yields its process and id."""
    script = f"""
        mount --bind "{image}" "{image}"
        mount -o remount,bind,ro "{image}"
        mount -t proc proc "{image}/proc"
        mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "{image}/tmp"
        exec "$@"
    """  # noqa: S108
    command = [*_inside(stage, image, env), *stage.entrypoint, *stage.command]
    unshare = ["unshare", "--mount", "--pid", "--fork"]
    process = subprocess.Popen([*unshare, "sh", "-ec", script, "sh", *command])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (numbers := children.read_text(encoding="utf-8").split()):
        time.sleep(0.01)
    try:
        yield process, int(numbers[0])
    finally:
        if process.poll() is None:  # unshare waits for it and would not end it
            os.kill(int(numbers[0]), signal.SIGKILL)
        process.wait()


def _inside(stage: Stage, image: Path, env: Mapping[str, str]) -> list[str]:
    variables = [f"{name}={value}" for name, value in env.items()]
    user = ["chroot", "--userspec", stage.user, "--groups=", str(image)]
    return [*user, "env", "--ignore-environment", f"--chdir={stage.workdir}", *variables]


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _call(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True)


def _say(line: str) -> None:
    print(f"[replay] {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
