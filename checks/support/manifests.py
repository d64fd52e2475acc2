"""Kustomizations, rendered without a cluster and without kubectl.

The kubectl of Debian 12 cannot do it: it is older than components. A test compares what is rendered
here with what a newer kubectl renders, where one is installed.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.service import ROOT

OVERLAYS = sorted((ROOT / "deploy/kubernetes/overlays").iterdir())

Object = dict[str, Any]


def render(folder: Path, given: Sequence[Object] = ()) -> list[Object]:
    """The objects of a kustomization. Only the fields that our files use are supported.

    A component gets the objects of the kustomization that names it, and can change them.
    """
    kustomization = load(folder / "kustomization.yaml")[0]
    objects = [*given]
    for field in kustomization:
        if field not in {"apiVersion", "kind", *_FIELDS}:
            raise ValueError(f"{folder}: the field {field} is not supported")
    for field in _FIELDS:  # in the order of kustomize
        for entry in kustomization.get(field, []):
            if field == "components":
                objects = render((folder / entry).resolve(), objects)
            elif field == "resources":
                path = (folder / entry).resolve()
                objects += render(path) if path.is_dir() else load(path)
            elif field == "configMapGenerator":
                objects.append(_config_map(folder, entry))
            elif field == "patches":
                (patch,) = load(folder / entry["path"])
                (target,) = (one for one in objects if _identity(one) == _identity(patch))
                _merge(target, patch)
            elif field == "labels":
                for one in objects:
                    one["metadata"].setdefault("labels", {}).update(entry["pairs"])
            else:
                for container in (c for one in objects for c in containers(one)):
                    if container["image"] == entry["name"]:
                        container["image"] = f"{entry['newName']}:{entry['newTag']}"
    return objects


_FIELDS = ("resources", "configMapGenerator", "components", "patches", "labels", "images")


def _config_map(folder: Path, entry: Object) -> Object:
    files = [folder / name for name in entry["files"]]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": entry["name"], "labels": entry["options"]["labels"]},
        "data": {file.name: file.read_text(encoding="utf-8") for file in files},
    }


def load(path: Path) -> list[Object]:
    text = path.read_text(encoding="utf-8")
    # JSON makes a copy of what YAML anchors share.
    return [json.loads(json.dumps(document)) for document in yaml.safe_load_all(text)]


def containers(one: Object) -> list[Object]:
    """The containers of an object, with those of its start; empty if it is not a workload."""
    pod: Object = one.get("spec", {}).get("template", {}).get("spec", {})
    return [*pod.get("initContainers", []), *pod.get("containers", [])]


def only(objects: Sequence[Object], kind: str) -> Object:
    (found,) = (one for one in objects if one["kind"] == kind)
    return found


def kubectl(overlay: Path) -> list[Object] | None:
    """The objects that kubectl renders for an overlay; None if kubectl is not installed."""
    if not (command := shutil.which("kubectl")):
        return None
    done = subprocess.run(
        [command, "kustomize", overlay], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


def _identity(one: Object) -> tuple[str, str, str]:
    return one["apiVersion"], one["kind"], one["metadata"]["name"]


def _merge(target: Object, patch: Object) -> None:
    """A strategic merge: lists of named entries are merged by name, other lists are replaced."""
    for key, value in patch.items():
        old = target.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            _merge(old, value)
        elif isinstance(value, list) and old and "name" in value[0]:
            by_name = {entry["name"]: entry for entry in old}
            for entry in value:
                if entry["name"] in by_name:
                    _merge(by_name[entry["name"]], entry)
                else:
                    old.append(entry)
        else:
            target[key] = value
