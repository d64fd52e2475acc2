"""Checks the Dockerfile, Compose files, manifests, Helm chart and GitHub's workflows.

Run it with ``make deploy-check``.

Objects are checked against the schemas of Kubernetes, and custom resources against those in
checks/deploy/schemas. Unknown fields are errors.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.service import ROOT
from checks.deploy import chart
from checks.support.manifests import OVERLAYS, Object, load, render

KUBERNETES = "1.34"
EXAMPLES = [*sorted((ROOT / "deploy/kserve").iterdir()), ROOT / "deploy/cloud-run/service.yaml"]
SCHEMAS = sorted((Path(__file__).parent / "schemas").glob("*.json"))


def main() -> int:
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
    schemas = [json.loads(path.read_bytes()) for path in SCHEMAS]
    return {
        (schema["properties"]["apiVersion"]["const"], schema["properties"]["kind"]["const"]): schema
        for schema in schemas
    }


if __name__ == "__main__":
    sys.exit(main())
