"""Where the values of settings come from: flags, the environment, and what the platform says.

Hosting platforms tell a container by variables that they set, and directories that they mount. A
platform gives a setting its value only if neither a flag nor ``SENTIMENT_<NAME>`` does.
"""

import argparse
import difflib
import importlib.metadata
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic import ValidationError

from sentiment_service.errors import plain_words
from sentiment_service.settings.credentials import Credentials, UnusableFile
from sentiment_service.settings.settings import (
    PREFIX,
    CheckpointOptions,
    Settings,
    flag,
    service_links,
)

# In the order in which they are looked up: Vertex AI, SageMaker, Cloud Run and Knative.
PORT_VARIABLES = ("AIP_HTTP_PORT", "SAGEMAKER_BIND_TO_PORT", "PORT")
# The port that SageMaker calls. It says so in a variable only where a container is one of several.
SAGEMAKER_PORT = 8080
SAGEMAKER_MOUNT = Path("/opt/ml")
# SageMaker, KServe and Hugging Face Endpoints.
MODEL_MOUNTS = (SAGEMAKER_MOUNT / "model", Path("/mnt/models"), Path("/repository"))
AZURE_MODEL_VARIABLE = "AZUREML_MODEL_DIR"
MANIFEST, CONFIG = "manifest.json", "config.json"  # of a bundle, and of a checkpoint
# SageMaker's own limits for a batch transform job that sets none: seconds for one request, and
# records of tweets in the 100 MB that all its requests may have together.
BATCH_DEADLINE_MS = 600_000
BATCH_TEXTS = 100_000


# The value that a platform gives a setting, and the variable or directory that says so.
PlatformValue = tuple[Any, str]


def platform_settings(environment: Mapping[str, str]) -> dict[str, PlatformValue]:
    """What the platform says, by the name of the setting. The values are not validated."""
    proxies = environment.get("FORWARDED_ALLOW_IPS")  # uvicorn's own
    trusted = {"trusted_proxies": (proxies, "FORWARDED_ALLOW_IPS")} if proxies else {}
    return _port(environment) | _model(environment) | _sagemaker(environment) | trusted


def _port(environment: Mapping[str, str]) -> dict[str, PlatformValue]:
    for name in PORT_VARIABLES:
        if environment.get(name):
            return {"port": (environment[name], name)}
    theirs = (name for name in environment if name.startswith("SAGEMAKER_") and environment[name])
    variable = next(theirs, None)
    if variable or SAGEMAKER_MOUNT.is_dir():
        return {"port": (SAGEMAKER_PORT, variable or f"SageMaker's {SAGEMAKER_MOUNT} exists")}
    return {}


def _model(environment: Mapping[str, str]) -> dict[str, PlatformValue]:
    azure = environment.get(AZURE_MODEL_VARIABLE)
    mounts = [*MODEL_MOUNTS, *([Path(azure)] if azure else [])]
    for mount in mounts:
        if bundles := _directories_with(MANIFEST, mount):
            return {"model": (bundles, f"{mount} has {MANIFEST}")}
    for mount in mounts:
        # Whoever mounts a model wants that one. A checkpoint is exported; otherwise the start ends.
        if _has_files(mount):
            models = _directories_with(CONFIG, mount) or (mount,)
            return {"model": (models, f"{mount} has files")}
    return {}


def _sagemaker(environment: Mapping[str, str]) -> dict[str, PlatformValue]:
    settings: dict[str, PlatformValue] = {}
    megabytes = environment.get("SAGEMAKER_MAX_PAYLOAD_IN_MB", "")
    if megabytes not in ("", "0"):  # 0 means: no limit, in chunks; then our own limit stays
        value = int(megabytes) * 2**20 if megabytes.isdecimal() else megabytes
        settings["max_body_bytes"] = value, "SAGEMAKER_MAX_PAYLOAD_IN_MB"
    if environment.get("SAGEMAKER_BATCH", "").lower() == "true":
        settings["deadline_ms"] = BATCH_DEADLINE_MS, "SAGEMAKER_BATCH"
        settings["max_texts"] = BATCH_TEXTS, "SAGEMAKER_BATCH"
    return settings


def _has_files(mount: Path) -> bool:
    try:
        return any(mount.iterdir())
    except FileNotFoundError:
        return False
    except OSError:  # a file, or it cannot be read; that it is there was meant
        return True


def _directories_with(file: str, mount: Path) -> tuple[Path, ...]:
    """The directory itself if it has the file, else those of its directories that have it."""
    try:
        if (mount / file).is_file():
            return (mount,)
        return tuple(sorted(found.parent for found in mount.glob(f"*/{file}")))
    except OSError:  # it cannot be read
        return ()


CLIENT_KEY = f"{PREFIX}API_KEY"  # what `classify --url` and sentiment_client send
KEYS = ("api_keys", "admin_keys")
# A key may be given as a file by mistake, so neither value is shown.
KEYS_AND_FILES = (*KEYS, *(f"{name}_file" for name in KEYS))


def load_settings(flags: dict[str, Any]) -> Settings:
    """Settings from ``flags`` (field name to value), then the environment, then the platform.

    The error of a value that is not valid names its flag or variable.
    """
    platform = _from_platform(flags)
    try:
        return Settings(**{name: value for name, (value, _) in platform.items()} | flags)
    except ValidationError as error:
        raise _named(error, lambda name: _source(name, flags, platform)) from None


def read_credentials(settings: Settings, flags: Mapping[str, Any]) -> Credentials:
    try:
        return Credentials.read(settings)
    except UnusableFile as error:
        raise ValueError(f"{_source(error.setting, flags, {})}: {error}") from None


def read_options(arguments: Namespace) -> CheckpointOptions:
    """What the flags of a command line say of a checkpoint. No variable is read."""
    given = vars(arguments)
    names = CheckpointOptions.model_fields.keys() & given.keys()
    try:
        return CheckpointOptions(**{name: given[name] for name in names})
    except ValidationError as error:
        raise _named(error, flag) from None


def _named(error: ValidationError, source: Callable[[str], str]) -> ValueError:
    """The first fault in our words, with what ``source`` says of the setting's name."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    given = "" if name in KEYS_AND_FILES else f", not {_shown(first['input'])!r}"
    message = first["msg"].removeprefix("Value error, ")
    return ValueError(f"{source(name)}: {plain_words(message)}{given}")


def sources(settings: Settings, flags: Mapping[str, Any]) -> str:
    """Port, model and what else the platform decided, each with what says so, in one line."""
    platform = _from_platform(flags)
    shown = {"port": settings.port, "model": settings.model or "the embedded one"}
    shown |= {name: getattr(settings, name) for name in platform}
    return "; ".join(
        f"{name} {_shown(value)} ({_source(name, flags, platform)})"
        for name, value in shown.items()
    )


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that is named like a setting, but has no effect.

    Those that Kubernetes sets for Services whose names begin with ``sentiment`` are left out,
    unless a setting has the same name.
    """
    addresses = service_links(environment)
    names = [name.upper() for name in environment if name.upper().startswith(PREFIX)]
    services = [name.removesuffix("HOST") for name in names if name.endswith("_SERVICE_HOST")]
    links = (
        *services,
        *map(str.upper, addresses),
        *(f"{service.removesuffix('SERVICE_')}PORT" for service in services),
    )
    settings = [*map(str.upper, Settings.model_fields)]
    known = [*map(_variable, settings), CLIENT_KEY]
    return [
        *(
            f"{name.upper()} is the address of a Service of that name, so it has no effect"
            for name in addresses
            if name.upper() in known
        ),
        *(
            f"{name} is not a setting{nearest(name.removeprefix(PREFIX), settings, PREFIX)}, so it "
            "has no effect"
            for name in names
            if name not in known and not name.startswith(links)
        ),
    ]


def check_key_variables(environment: Mapping[str, str], settings: Settings) -> None:
    """Return unless somebody wanted keys, but gave them in a variable that nobody reads."""
    clients = any(value for name, value in environment.items() if name.upper() == CLIENT_KEY)
    if clients and not settings.has_keys:
        raise ValueError(
            f"{CLIENT_KEY} is what a client sends; the keys that this service accepts are in "
            f"{_variable('api_keys')}"
        )
    for reason in unknown_variables(environment):
        if "KEY" in reason.partition(" ")[0]:
            keys = " and ".join(map(_variable, KEYS))
            raise ValueError(f"{reason}; the settings of keys are {keys}")


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """The known word that is most like this one, in brackets for a message; empty if none is.

    The ``prefix`` stands before it in the message, and makes no words alike.
    """
    found = difflib.get_close_matches(word, list(known), n=1)
    return f" (the nearest is {prefix}{found[0]})" if found else ""


def _from_platform(flags: Mapping[str, Any]) -> dict[str, PlatformValue]:
    return {
        name: given
        for name, given in platform_settings(os.environ).items()
        if name not in flags and not _is_set(name)
    }


def _source(name: str, flags: Mapping[str, Any], platform: Mapping[str, PlatformValue]) -> str:
    """The flag, the variable or the mount that gives a setting its value."""
    if name in flags:
        return flag(name)
    if name in platform:
        return platform[name][1]
    return _variable(name) if _is_set(name) else "default"


def _is_set(name: str) -> bool:
    given = os.environ.keys() - service_links(os.environ)
    return _variable(name) in map(str.upper, given)


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _shown(value: Any) -> Any:
    """A value as its flag has it; the values of a repeated flag in one."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


# What `serve --help` shows, in this order. Each setting is in one of the groups.
GROUPS = {
    "set first": "model host port device workers api_keys rate_limit deadline_ms",
    "models": "served_name shadow shadow_share precision gpu_memory_mb cache_mb cache_dir",
    "checkpoints and hub ids": " ".join([*CheckpointOptions.model_fields, "refresh"]),
    "limits": "max_texts max_text_chars max_body_bytes max_inflight_bytes max_header_bytes "
    "max_queue_tokens drain_ms",
    "access and other ports": "api_keys_file admin_keys admin_keys_file cors_origins "
    "trusted_proxies root_path tls_cert tls_key docs grpc_port metrics_port",
    "logs and traces": "log_format log_level access_log otlp_endpoint",
    "measured at start, if not set": "runners threads max_batch_tokens target_latency_ms",
}
# The words for values in help, where the setting's name does not end with one.
METAVARS = {
    **dict.fromkeys(("model", "shadow"), "MODEL"),
    **dict.fromkeys(("runners", "threads", "workers"), "N"),
    "host": "ADDRESS",
}
SINGLE_LABEL = "for a checkpoint: a text has one label, the opposite of --multi-label"


class CommandParser(argparse.ArgumentParser):
    """A wrong word gets the nearest right one, and the usage of the command it was given to."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See ``argparse``, but no unknown word is left for the command above this one."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            kind = "option" if word.startswith("-") else "argument"
            hint = nearest(word, self._option_string_actions)
            if kind == "option" and self._get_positional_actions():
                hint += "; what begins with - and is no option comes after --"
            self.error(f"there is no {kind} {word!r}{hint}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Print the usage and what is wrong, and exit with code 2."""
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not a choice. ``argparse`` calls this for commands, too."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            hint = f"{nearest(str(value), choices)}; accepted are {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"there is no {value!r}{hint}")


def local_path(value: str) -> Path:
    """A path of the command line. ``~`` is the home directory, also where no shell expands it."""
    return Path(os.path.expanduser(value))  # noqa: PTH111 - the other one fails without a home


def add_version(parser: argparse.ArgumentParser) -> None:
    version = importlib.metadata.version("sentiment-service")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version}")


def add_settings_in_groups(parser: argparse.ArgumentParser) -> None:
    for title, names in GROUPS.items():
        add_settings(parser.add_argument_group(title), names.split())


def add_settings(
    parser: argparse._ActionsContainer,
    names: Iterable[str],
    descriptions: Mapping[str, str] | None = None,
) -> None:
    """Add a flag for each of these settings. ``load_settings`` validates the values later.

    ``descriptions`` take the place of the settings' own.
    """
    for name in names:
        field = Settings.model_fields[name]
        description = (descriptions or {}).get(name) or str(field.description)
        default = "" if "[default:" in description else f" [default: {_default(field.default)}]"
        if bool in (field.annotation, *get_args(field.annotation)):
            given: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
            parser.add_argument(
                flag(name), action="store_true", help=description + default, **given
            )
            if name == "multi_label":
                parser.add_argument(
                    "--single-label", action="store_false", help=SINGLE_LABEL, **given
                )
            continue
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        parser.add_argument(
            flag(name),
            action="append" if name in ("model", "served_name") else "store",
            default=argparse.SUPPRESS,  # without the flag, the environment decides
            metavar=METAVARS.get(name) or "|".join(choices) or name.split("_")[-1].upper(),
            help=description + default,
        )


def _default(default: object) -> object:
    return "off" if default is False else "none" if default in ("", (), None) else default
