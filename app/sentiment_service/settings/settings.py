"""The service's settings: ``formats.py`` reads their values, ``sources.py`` finds them.

Those that say what a checkpoint does not say itself are options of the export, too.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from sentiment_service.engine.options import EngineConfig, Preprocessing
from sentiment_service.errors import UserError
from sentiment_service.settings import formats

PREFIX = "SENTIMENT_"
# What Kubernetes and Docker say of a Service called `sentiment` in SENTIMENT_PORT, and of one
# called `sentiment-metrics` in SENTIMENT_METRICS_PORT: tcp://10.43.0.9:80.
SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")


class CheckpointOptions(BaseModel):
    """How to read a checkpoint. A default means: as the checkpoint itself, or its name, says."""

    model_config = ConfigDict(frozen=True)

    labels: formats.Labels = Field(
        default=(),
        description="for a checkpoint: names of its outputs in logit order, separated by ',' "
        "[default: those of config.json, or of a known checkpoint]",
    )
    preprocessing: Literal["auto", Preprocessing] = Field(
        default="auto",
        description="for a checkpoint: how texts are normalised; auto means: as the checkpoint was "
        "trained, if it or its name tells",
    )
    multi_label: bool | None = Field(
        default=None,
        description="for a checkpoint: a text can have several labels, so that each score is a "
        "sigmoid of its own [default: problem_type in config.json]",
    )
    text_pairs: bool = Field(
        default=False,
        description="for a checkpoint: it was trained on pairs of texts, such as a review and one "
        "aspect of it",
    )
    max_tokens: formats.Count = Field(
        default=0,
        description="for a checkpoint: cut texts to this many tokens; 0 means: as many as it has "
        "positions for",
    )
    languages: formats.Languages = Field(
        default=(),
        description="for a checkpoint: the languages that it was trained on, as tags such as "
        "pt-BR, separated by ',' [default: as config.json or a known checkpoint says]",
    )
    onnx: str = Field(
        default="",
        description="for a directory or repository with ONNX graphs: which file to export, such as "
        "onnx/model_quantized.onnx, also where there are weights [default: the fp32 one]",
    )

    def checkpoint_flags(self) -> list[str]:
        """The options that differ from their defaults, as flags of a command line."""
        words: list[str] = []
        for name, field in CheckpointOptions.model_fields.items():
            value = getattr(self, name)
            if value == field.default:
                continue
            if isinstance(value, bool):
                words.append(flag(name) if value else "--single-label")
            else:
                words += [flag(name), ",".join(value) if isinstance(value, tuple) else str(value)]
        return words

    def refuse_bundle(self, name: str) -> None:
        """Return if there are no options: what they say is decided in a bundle."""
        if words := [word for word in self.checkpoint_flags() if word.startswith("--")]:
            raise UserError(
                f"{name} is a bundle, and {', '.join(words)} cannot change it: give its checkpoint"
            )


AS_IT_SAYS = CheckpointOptions()


class Settings(CheckpointOptions, BaseSettings):
    """All settings, in one frozen object. Those of checkpoints are ``CheckpointOptions``.

    The variable ``SENTIMENT_<NAME>`` sets a field; the flag of the same name overrides it.
    ``api_keys`` and ``admin_keys`` are given as keys, in one string separated by commas, and held
    as digests.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    model: formats.Paths = Field(
        default=(),
        description="model to load: a bundle, a checkpoint directory or a hub id "
        "(ORG/NAME[@REVISION]); the last two are exported once, into --cache-dir; a path wins over "
        "a hub id; for several models, repeat the option (in the environment, separate them by "
        f"'{os.pathsep}'); requests that name none go to the first [default: a mounted model, such "
        "as /mnt/models, else the embedded one]",
    )
    served_name: formats.Names = Field(
        default=(),
        description="name under which requests and metrics know the model, in the place of its "
        "bundle's name; for several models, repeat the option in their order (in the environment, "
        "separate the names by ','); those that get no name keep their own",
    )
    shadow: formats.OptionalPath = Field(
        default=None,
        description="candidate to try beside the first model, with the same labels: it classifies "
        "texts that were answered, too, while nothing else is to be computed; GET /info compares, "
        "and POST /models/{name}/promote makes it the model",
    )
    shadow_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="share of the answered texts that the candidate gets, from 0 to 1; what it has "
        "no time for is skipped",
    )
    host: formats.Host = Field(default=formats.LOOPBACK, description="address to listen on")
    port: formats.Port = Field(
        default=8000,
        description="port to listen on; 0 means: any free port; if not set, AIP_HTTP_PORT, "
        "SAGEMAKER_BIND_TO_PORT or PORT of the platform",
    )
    device: formats.DeviceName = Field(
        default="auto",
        description="where to compute: 'cpu', 'cuda' (the first GPU) or GPUs by their numbers, "
        "such as 'cuda:1' or 'cuda:0,1', each with a copy of the model; auto means: on the first "
        "GPU if CUDA works, else on the CPU",
    )
    workers: formats.Workers = Field(
        default=1,
        description="processes that serve, each with its share of the CPUs and GPUs; connections "
        "are dealt out evenly; auto means: one for every 8 CPUs, or for every 4 where a GPU "
        "computes; more than 1 needs Linux",
    )
    gpu_memory_mb: formats.Count = Field(
        default=0,
        description="megabytes of each GPU that the weights and batches of one model may take, in "
        "all workers that share the GPU together; CUDA itself takes more; 0 means: no limit, or "
        "the whole GPU for workers that share it",
    )
    precision: Literal["auto", "fp32", "fp16", "int8"] = Field(
        default="auto",
        description="variant of the model; auto means: the fastest one for the device",
    )
    runners: formats.AtOnce = Field(
        default=0, description="batches computed at the same time; 0 means: measured at start"
    )
    threads: formats.AtOnce = Field(
        default=0, description="threads that compute one batch; 0 means: measured at start"
    )
    max_batch_tokens: formats.Count = Field(
        default=0,
        description="maximum tokens in one batch, with padding (texts x longest text) if it is "
        "computed; 0 means: measured at start",
    )
    cache_dir: formats.OptionalPath = Field(
        default=None,
        description="directory that keeps exported models, and the measurements for the next start "
        "[default: sentiment-service in the user's cache directory, if there is one]",
    )
    refresh: bool = Field(
        default=False,
        description="for a hub id: fetch and export it again if it has another commit now",
    )
    target_latency_ms: formats.Count = Field(
        default=0,
        description="milliseconds in which a short text should be answered under load; the "
        "measurement at start chooses the settings with the highest throughput that meet this "
        "target; 0 means: no target",
    )
    max_queue_tokens: formats.Count = Field(
        default=0,
        description="maximum tokens that wait in the queue; one request may use at most half of "
        "them; a request that does not fit gets 429; 0 means: as many as are computed in a second "
        "at the measured speed, but at least 65536, and more only as far as the memory suffices",
    )
    cache_mb: formats.Count = Field(
        default=0,
        description="megabytes in which each model keeps the results of its latest texts, so that "
        "a text that comes again is not computed again and gets its earlier result; 0 means: keep "
        "none",
    )
    max_texts: int = Field(default=1_000, ge=1, description="maximum texts in one request")
    max_text_chars: int = Field(default=50_000, ge=1, description="maximum characters in one text")
    max_body_bytes: int = Field(
        default=2_097_152, ge=1, description="maximum bytes of one request body"
    )
    max_inflight_bytes: formats.Count = Field(
        default=0,
        description="maximum bytes of all request bodies held at the same time; a request beyond "
        "that gets 429; 0 means: an eighth of the memory that the process may use, but at most "
        "256 MiB, and at least two bodies of --max-body-bytes",
    )
    max_header_bytes: int = Field(
        default=32_768,
        ge=1_024,
        description="maximum bytes of a request's first line and headers together",
    )
    deadline_ms: int = Field(
        default=10_000,
        ge=1,
        description="milliseconds that a request may take before it gets 504; a request can ask "
        "for less with the header x-request-timeout-ms",
    )
    drain_ms: formats.Count = Field(
        default=10_000, description="milliseconds that requests in flight get to finish at shutdown"
    )
    api_keys: formats.KeyDigests = Field(
        default=(),
        repr=False,
        description="keys, separated by ','; each request must send one of them as 'Authorization: "
        "Bearer KEY'; set them in the environment, because other users of the machine can see "
        "flags; without keys, everyone may send requests",
    )
    admin_keys: formats.KeyDigests = Field(
        default=(),
        repr=False,
        description="keys, separated by ',', for POST /models/{name}/reload and /promote; like "
        "--api-keys, set them in the environment; without keys, only the signal SIGHUP reloads "
        "models",
    )
    api_keys_file: formats.SecretFile = Field(
        default=None,
        description="file with more keys for --api-keys, a line for each key or name=key, or a "
        "directory of such files, such as a mounted secret; SIGHUP reads it again",
    )
    admin_keys_file: formats.SecretFile = Field(
        default=None,
        description="file or directory with more keys for --admin-keys, each as key or name=key",
    )
    rate_limit: formats.Rate = Field(
        default="",
        description="maximum requests of each key (without keys, of each address), such as "
        "'600/minute'; further requests get 429; each replica counts by itself",
    )
    cors_origins: formats.Origins = Field(
        default=(),
        description="origins whose web pages may use the service, such as 'https://example.org', "
        "separated by ','; '*' means: all origins",
    )
    trusted_proxies: formats.Networks = Field(
        default=(),
        description="addresses and networks of the proxies in front of the service, such as "
        "'10.0.0.7,10.1.0.0/16'; their X-Forwarded-For names the client; '*' means: every "
        "client is believed [default: FORWARDED_ALLOW_IPS, else none]",
    )
    root_path: formats.RootPath = Field(
        default="",
        description="path that a proxy puts in front of the service's own, such as '/sentiment'; "
        "needed only if the proxy does not remove it",
    )
    tls_cert: formats.SecretFile = Field(
        default=None,
        description="file with the certificate and its chain (PEM), for HTTPS and gRPC on the "
        "service's ports; a port of the metrics stays without; SIGHUP reads it again",
    )
    tls_key: formats.SecretFile = Field(
        default=None, description="file with the certificate's private key (PEM), not encrypted"
    )
    docs: Literal["on", "off"] = Field(default="on", description="serve /docs and /openapi.json")
    metrics_port: formats.Port = Field(
        default=0,
        description="port that serves only /metrics; 0 means: /metrics is on the service's port",
    )
    grpc_port: formats.Port = Field(
        default=0,
        description="port for gRPC: Open Inference Protocol, health and reflection; 0 means: "
        "no gRPC; needs the extra 'grpc'",
    )
    otlp_endpoint: formats.Collector = Field(
        default="",
        description="URL of the OpenTelemetry collector to send traces to over HTTP, such as "
        "http://localhost:4318; needs the extra 'otel'",
    )
    log_format: Literal["auto", "human", "json"] = Field(
        default="auto",
        description="format of the log; auto means: human at a terminal, json elsewhere",
    )
    access_log: Literal["on", "off"] = Field(
        default="on", description="log a line for each request, with the time of each stage"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="lowest level that is logged"
    )

    @classmethod
    def settings_customise_sources(
        cls, *_: Any, **sources: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given, then the environment, without what ``service_links`` names."""
        given, environment = sources["init_settings"], sources["env_settings"]
        links = set(map(str.lower, service_links(os.environ)))
        found = environment.env_vars.items()
        environment.env_vars = {name: value for name, value in found if name not in links}
        return given, environment

    @field_validator("precision")
    @classmethod
    def _suits_the_device(cls, precision: str, info: ValidationInfo) -> str:
        if precision == "int8" and info.data.get("device", "").startswith("cuda"):
            raise ValueError(
                "int8 is for CPUs: ONNX Runtime computes it there, with copies to and from the GPU "
                "for each layer; give fp16, fp32 or auto, or the device cpu"
            )
        return precision

    @field_validator("max_inflight_bytes")
    @classmethod
    def _holds_a_body(cls, value: int, info: ValidationInfo) -> int:
        if 0 < value < (longest := info.data.get("max_body_bytes", 0)):
            raise ValueError(
                f"one body may have {longest} bytes (--max-body-bytes), so set at least as many"
            )
        return value

    @field_validator("metrics_port", "grpc_port")
    @classmethod
    def _is_another_port(cls, value: int, info: ValidationInfo) -> int:
        if 0 < value == info.data.get("port"):
            raise ValueError("give another port than the service's own (--port)")
        if 0 < value == info.data.get("metrics_port"):
            raise ValueError("give another port than that of the metrics (--metrics-port)")
        return value

    @field_validator("served_name")
    @classmethod
    def _names_each_model(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        models = len(info.data.get("model", ())) or 1
        if len(names) > models:
            raise ValueError(f"give at most as many names as models: {models}")
        if len(set(names)) < len(names):
            raise ValueError("give each model another name")
        return names

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys or self.api_keys_file)

    def engine_config(self, gpu_workers: int = 1) -> EngineConfig:
        """What the engine needs of these settings, where ``gpu_workers`` processes share a GPU."""
        others: dict[str, Any] = {
            "workers": 1 if self.workers == "auto" else self.workers,
            "gpu_workers": gpu_workers,
            "cache_dir": cache_directory(self),
            "retire_ms": max(self.drain_ms, self.deadline_ms),
        }
        same = {field.name for field in dataclasses.fields(EngineConfig)} - others.keys()
        return EngineConfig(**{name: getattr(self, name) for name in same}, **others)


def service_links(environment: Mapping[str, str]) -> list[str]:
    """The variables that are named like a port of ours, but have the address of a Service."""
    return [
        name
        for name, value in environment.items()
        if name.upper().startswith(PREFIX)
        and name.upper().endswith("PORT")
        and SERVICE_LINK.match(value)
    ]


def cache_directory(settings: Settings) -> Path | None:
    """The directory for measurements and exported models; None if the system has no such place."""
    if settings.cache_dir is not None:
        return settings.cache_dir
    try:
        directory = platformdirs.user_cache_path("sentiment-service", appauthor=False)
    except RuntimeError:  # a user without a home directory; earlier platformdirs give "~"
        return None
    return directory if directory.is_absolute() else None


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")
