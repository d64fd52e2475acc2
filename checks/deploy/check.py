"""Checks the Dockerfile, Compose files, manifests, Helm chart and GitHub's workflows.

Run it with ``make deploy-check``.

Objects are checked against the schemas of Kubernetes, and custom resources against those in
checks/deploy/schemas. Unknown fields are errors.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.service import ROOT
from checks.deploy import chart

KUBERNETES = "1.34"
OVERLAYS = sorted((ROOT / "deploy/kubernetes/overlays").iterdir())
EXAMPLES = [*sorted((ROOT / "deploy/kserve").iterdir()), ROOT / "deploy/cloud-run/service.yaml"]
SCHEMAS = sorted((Path(__file__).parent / "schemas").glob("*.json"))

Object = dict[str, Any]


def main() -> int:
    """Check everything; the exit code is 1 if something is wrong."""
    tools = Path(sys.executable).parent
    compose = sorted(ROOT.glob("docker-compose*.yml"))
    workflows = sorted(ROOT.glob(".github/workflows/*.yml"))
    commands: list[list[str | Path]] = [
        [tools / "hadolint", "--failure-threshold=info", ROOT / "Dockerfile"],
        [tools / "check-jsonschema", "--builtin-schema=vendor.compose-spec", *compose],
        [tools / "check-jsonschema", "--builtin-schema=vendor.github-workflows", *workflows],
        [tools / "zizmor", "--offline", "--quiet", "--no-progress", "--pedantic", ROOT / ".github"],
    ]
    failed = [subprocess.run(command, check=False).returncode for command in commands]
    objects = {overlay.name: render(overlay) for overlay in OVERLAYS}
    objects |= {str(path.relative_to(ROOT)): load(path) for path in EXAMPLES}
    problems = list(chart.chart_problems())
    if not problems:
        objects |= {f"chart, {name}": chart.rendered(case) for name, case in chart.CASES.items()}
    problems += [found for name, group in objects.items() for found in violations(name, group)]
    print(*problems, sep="\n", end="\n" if problems else "")
    if any(failed) or problems:
        return 1
    print(
        f"deploy-check: {len(compose)} Compose files, {len(OVERLAYS)} overlays, "
        f"{len(EXAMPLES)} objects for KServe and Knative, {len(chart.CASES)} ways to use the Helm "
        f"chart, {len(workflows)} workflows, a Dockerfile: ok"
    )
    return 0


def violations(name: str, objects: list[Object]) -> Iterator[str]:
    """The violations of the schemas in the objects of an overlay, of the chart or of a file."""
    import jsonschema
    import kubernetes_validate

    custom = custom_schemas()
    for one in objects:
        try:
            if schema := custom.get((one["apiVersion"], one["kind"])):
                jsonschema.validate(one, schema)
            else:
                kubernetes_validate.validate(one, KUBERNETES, strict=True)
        except jsonschema.ValidationError as error:
            where = ".".join(map(str, error.path))
            yield f"{name}: {one['kind']} {where}: {error.message}"


def custom_schemas() -> dict[tuple[str, str], Object]:
    """The schemas of custom resources by ``apiVersion`` and ``kind``."""
    schemas = [json.loads(path.read_bytes()) for path in SCHEMAS]
    return {
        (schema["properties"]["apiVersion"]["const"], schema["properties"]["kind"]["const"]): schema
        for schema in schemas
    }


def render(folder: Path, given: Sequence[Object] = ()) -> list[Object]:
    """The objects of a kustomization. Only the fields that our files use are supported.

    A component gets the objects of the kustomization that names it, and can change them.

    Raises:
        ValueError: a field is not supported.
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
    """The documents of a YAML file."""
    text = path.read_text(encoding="utf-8")
    # JSON makes a copy of what YAML anchors share.
    return [json.loads(json.dumps(document)) for document in yaml.safe_load_all(text)]


def containers(one: Object) -> list[Object]:
    """The containers of an object; empty if it is not a workload."""
    found: list[Object] = (
        one.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    )
    return found


def only(objects: Sequence[Object], kind: str) -> Object:
    """The one object of this kind."""
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


if __name__ == "__main__":
    sys.exit(main())
