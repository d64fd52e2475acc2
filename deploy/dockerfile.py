"""Reads the Dockerfile and .dockerignore, for the checks, the tests and the replay."""

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Copy:
    """COPY: files from the context or from another stage."""

    sources: list[str]
    target: str
    stage: str | None


@dataclass
class Run:
    """RUN: a shell command."""

    command: str


@dataclass
class Stage:
    """A stage: its steps, and the settings of a container that is started from it."""

    name: str
    base: str
    steps: list[Copy | Run] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    stop_signal: str = ""
    ports: list[str] = field(default_factory=list)
    # For each step: its variables, user and directory.
    contexts: list[tuple[dict[str, str], str, str]] = field(default_factory=list)


def stages(text: str, given: Mapping[str, str] | None = None) -> dict[str, Stage]:
    """The stages by name, in the order of the file, with inherited settings filled in.

    ``given`` holds build arguments.

    Raises:
        ValueError: an instruction is not supported, because our Dockerfile does not use it.
    """
    found: dict[str, Stage] = {}
    defaults: dict[str, str] = {}  # arguments before the first stage
    arguments: dict[str, str] = {}
    stage: Stage | None = None
    for word, rest in _instructions(text):
        if word == "ARG":
            name, _, value = rest.partition("=")
            (defaults if stage is None else arguments)[name] = (given or {}).get(name, value)
            continue
        if word == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest, re.IGNORECASE).groups()  # type: ignore[union-attr]
            base, arguments = Template(base).substitute(defaults), {}
            stage = found[name] = _derived(name, base, found.get(base))
            continue
        if stage is None:
            raise ValueError(f"{word} before FROM")
        _apply(stage, word, rest, arguments)
    return found


def _apply(stage: Stage, word: str, rest: str, arguments: dict[str, str]) -> None:
    variables = stage.env | arguments
    match word:
        case "RUN" | "COPY":
            stage.contexts.append((variables, stage.user, stage.workdir))
            stage.steps.append(Run(rest) if word == "RUN" else _copy(rest))
        case "ENV" | "LABEL":
            pairs = [pair.partition("=")[::2] for pair in shlex.split(rest)]
            new = {name: Template(value).substitute(variables) for name, value in pairs}
            (stage.env if word == "ENV" else stage.labels).update(new)
        case "USER":
            stage.user = rest
        case "WORKDIR":
            stage.workdir = rest
        case "ENTRYPOINT":
            stage.entrypoint = json.loads(rest)
            stage.command = []
        case "CMD":
            stage.command = json.loads(rest)
        case "HEALTHCHECK":
            stage.healthcheck = [] if rest == "NONE" else json.loads(rest[rest.index("[") :])
        case "STOPSIGNAL":
            stage.stop_signal = rest
        case "EXPOSE":
            stage.ports = rest.split()
        case _:
            raise ValueError(f"{word} is not supported")


def _derived(name: str, base: str, parent: Stage | None) -> Stage:
    if parent is None:
        return Stage(
            name, base, env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        )
    return Stage(
        name,
        base,
        env=dict(parent.env),
        labels=dict(parent.labels),
        user=parent.user,
        workdir=parent.workdir,
        entrypoint=parent.entrypoint,
        command=parent.command,
        healthcheck=parent.healthcheck,
        stop_signal=parent.stop_signal,
        ports=parent.ports,
    )


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    for line in joined.splitlines():
        word, _, rest = line.partition(" ")
        yield word.upper(), rest.strip()


def _copy(rest: str) -> Copy:
    words = rest.split()
    flags = [word for word in words if word.startswith("--")]
    *sources, target = [word for word in words if not word.startswith("--")]
    stage = None
    for flag in flags:
        if not flag.startswith("--from="):
            raise ValueError(f"COPY {flag} is not supported")
        stage = flag.removeprefix("--from=")
    return Copy(sources, target, stage)


def context(root: Path = ROOT) -> Iterator[str]:
    """The files of the build context that .dockerignore keeps, relative to ``root``."""
    rules = [
        (line.startswith("!"), _pattern(line.removeprefix("!").strip("/")))
        for line in (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    for folder, folders, names in os.walk(root):
        if Path(folder) == root:
            folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = (Path(folder) / name).relative_to(root).as_posix()
            kept = True
            for keeps, pattern in rules:  # the last matching rule decides
                if pattern.match(path):
                    kept = keeps
            if kept:
                yield path


def _pattern(glob: str) -> re.Pattern[str]:
    """A Docker glob. ``*`` matches in a name, ``**/`` any folders; a folder includes its files."""
    parts = re.split(r"(\*\*/|\*)", glob)
    special = {"**/": "(?:.*/)?", "*": "[^/]*"}
    return re.compile("".join(special.get(part, re.escape(part)) for part in parts) + r"(?:/|$)")
