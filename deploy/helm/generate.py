"""Writes what the chart has from elsewhere: the schema of ``settings``, and its README.

``python -m deploy.helm.generate`` writes both. The schema has the rules of the service's own
settings, the README the comments of values.yaml.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from sentiment_service.settings import formats
from sentiment_service.settings.settings import CheckpointOptions, Settings

CHART = Path(__file__).parent / "sentiment"
SCHEMA, README, VALUES = CHART / "values.schema.json", CHART / "README.md", CHART / "values.yaml"
# What the chart decides, or has values of its own for.
DECIDED = {
    *("host", "port", "metrics_port", "grpc_port", "drain_ms", "model", "refresh"),
    *("api_keys", "admin_keys", "api_keys_file", "admin_keys_file", "tls_cert", "tls_key"),
    *CheckpointOptions.model_fields,  # the chart serves a bundle
}


def _list_of(item: str) -> str:
    """The pattern of a list as text; parts of it may be empty."""
    return rf"(\s*({item})?\s*(,|$))*"


NUMBER = r"\s*\+?\d+(\.0+)?\s*"  # as pydantic reads a whole number from text
# How the values of these types are written. The chart serves one model, so it has one name. What
# only the service can tell, such as whether a network is one, it says when it starts.
PATTERNS: dict[Any, str] = {
    formats.Names: rf"[\s,]*({formats.MODEL_NAME.pattern})?[\s,]*",
    formats.Origins: _list_of(formats.ORIGIN.pattern),
    formats.Networks: r"[\s,]*\*[\s,]*|[\s,0-9A-Fa-f:./]*",
    formats.RootPath: formats.ROOT_PATH.pattern,
    formats.DeviceName: formats.DEVICE.pattern,
    formats.Workers: f"auto|{NUMBER}",
    formats.AtOnce: NUMBER,
    formats.Rate: f"({formats.RATE.pattern})?",
    formats.Collector: f"({formats.COLLECTOR.pattern})?",
    formats.OptionalPath: ".*",
}
LEAST: dict[Any, int] = {formats.Workers: 1, formats.AtOnce: 0}  # these have a maximum, too


def settings_schema() -> dict[str, Any]:
    """The schema of the values in ``settings``; the service has the last word on texts."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: _setting(name) for name in Settings.model_fields if name not in DECIDED
        },
    }


def _setting(name: str) -> dict[str, Any]:
    kind = get_type_hints(Settings, include_extras=True)[name]
    if kind in LEAST:
        bounds = {"minimum": LEAST[kind], "maximum": formats.MOST_AT_ONCE}
        return _text(PATTERNS[kind]) | bounds
    if kind in PATTERNS:
        return _text(PATTERNS[kind])
    own = Settings.model_json_schema()["properties"][name]
    rules = {key: own[key] for key in ("enum", "type", "minimum", "maximum") if key in own}
    if rules.get("type") == "integer":
        return rules | _text(NUMBER)
    if rules.get("type") == "number":
        return rules | {"type": ["number", "string"], "pattern": r"^\s*\+?[\d.]+\s*$"}
    if "enum" in rules:
        return rules
    raise ValueError(f"{name}: PATTERNS does not say how its values are written")


def _text(pattern: str) -> dict[str, Any]:
    """A text of this pattern, or a whole number if its digits fit."""
    if not re.fullmatch(pattern, "1024"):
        return {"type": "string", "pattern": f"^({pattern})$"}
    return {"type": ["integer", "string"], "pattern": f"^({pattern})$"}


def schema() -> str:
    """values.schema.json with the settings as the service has them."""
    document = json.loads(SCHEMA.read_text(encoding="utf-8"))
    document["properties"]["settings"] = settings_schema()
    return json.dumps(document, indent=2) + "\n"


HEAD = """\
<!-- Written by `python -m deploy.helm.generate` from values.yaml. -->
# The Helm chart `sentiment`

A service that classifies the sentiment of texts. `docs/containers.md` says how to use the chart.

```sh
helm install NAME deploy/helm/sentiment --set image.repository=ghcr.io/OWNER/REPOSITORY
helm test NAME --logs
```

| value | default | |
| --- | --- | --- |
"""


def readme() -> str:
    """A table of all values with their defaults and comments."""
    text = VALUES.read_text(encoding="utf-8")
    rows = _rows(yaml.compose(text), text.splitlines())
    return HEAD + "".join(f"| `{name}` | {default} | {said} |\n" for name, default, said in rows)


def _rows(node: yaml.MappingNode, lines: list[str], path: str = "") -> Iterator[tuple[str, ...]]:
    """Name, default and comment of each value; a group has no default."""
    for key, value in node.value:
        name = f"{path}{key.value}"
        said = _comment(lines, key.start_mark.line).replace("|", r"\|")
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            if said:
                yield name, "", said
            yield from _rows(value, lines, f"{name}.")
        else:
            default = yaml.SafeLoader("").construct_document(value)
            yield name, f"`{json.dumps(default, ensure_ascii=False)}`", said


def _comment(lines: list[str], number: int) -> str:
    """What stands above a line and beside it."""
    above = number
    while above and lines[above - 1].lstrip().startswith("# "):
        above -= 1
    words = [line.strip(" #") for line in lines[above:number]]
    beside = re.search(r" # (.*)", lines[number])
    return " ".join([*words, *([beside[1]] if beside else [])])


if __name__ == "__main__":
    SCHEMA.write_text(schema(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")
