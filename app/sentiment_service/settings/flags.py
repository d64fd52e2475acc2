"""Command lines: a parser that names the nearest right word, and a flag for each setting."""

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from sentiment_service.settings.checkpoint_options import CheckpointOptions
from sentiment_service.settings.settings import Settings, flag
from sentiment_service.settings.sources import nearest

# What `serve --help` shows, in this order. Each setting is in one of the groups.
GROUPS = {
    "set first": (
        *("model", "host", "port", "device", "workers", "api_keys", "rate_limit", "deadline_ms"),
    ),
    "models": ("served_name", "precision", "gpu_memory_mb", "cache_mb", "cache_dir"),
    "checkpoints and hub ids": (*CheckpointOptions.model_fields, "refresh"),
    "limits": (
        *("max_texts", "max_text_chars", "max_body_bytes", "max_inflight_bytes"),
        *("max_header_bytes", "max_queue_tokens", "drain_ms"),
    ),
    "access and other ports": (
        *("api_keys_file", "admin_keys", "admin_keys_file", "cors_origins", "trusted_proxies"),
        *("root_path", "tls_cert", "tls_key", "docs", "grpc_port", "metrics_port"),
    ),
    "logs and traces": ("log_format", "log_level", "access_log", "otlp_endpoint"),
    "measured at start, if not set": (
        *("runners", "threads", "max_batch_tokens", "target_latency_ms"),
    ),
}
# The words for values in help, where the setting's name does not end with one.
METAVARS = {"model": "MODEL", "host": "ADDRESS", "runners": "N", "threads": "N", "workers": "N"}
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
    """Add ``--version``, which prints that of the installed package."""
    version = importlib.metadata.version("sentiment-service")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version}")


def add_settings_in_groups(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting, in the groups of help."""
    for title, names in GROUPS.items():
        add_settings(parser.add_argument_group(title), names)


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
        default = "" if "[default:" in description else f" [default: {_shown(field.default)}]"
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


def _shown(default: object) -> object:
    return "off" if default is False else "none" if default in ("", (), None) else default
