"""The service's settings. app/config/sources.py says where their values come from."""

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBytes, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

# SHA-256 of each key, in hexadecimal. They are bytes so that they cannot be mistaken for keys,
# which are strings.
KeyDigests = Annotated[tuple[StrictBytes, ...], NoDecode]

API_KEY = re.compile(r"[!-+\--~]{8,256}")  # printable ASCII without the comma, which separates keys
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+")
MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3}(,[0-9]{1,3})*)?")
RATE = re.compile(r"[1-9]\d*/(second|minute|hour|day)")


class Settings(BaseSettings):
    """All settings, in one frozen object.

    The variable ``SENTIMENT_<NAME>`` sets a field; the flag of the same name overrides it.
    ``api_keys`` and ``admin_keys`` are given as keys, in one string separated by commas, and held
    as digests.
    """

    model_config = SettingsConfigDict(env_prefix="SENTIMENT_", frozen=True)

    model: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(),
        description="bundle to load, a directory that sentiment-export wrote; to serve several, "
        f"repeat the option (in the environment, separate them by '{os.pathsep}'); requests that "
        "name no model go to the first [default: what a platform has mounted, such as "
        "/mnt/models, else the embedded model]",
    )
    served_name: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="name under which requests and metrics know the model, in the place of its "
        "bundle's name; for several models, repeat the option in their order (in the environment, "
        "separate the names by ',')",
    )
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(
        default=8000,
        ge=0,
        le=65535,
        description="port to listen on; 0 means: any free port; if not set, AIP_HTTP_PORT, "
        "SAGEMAKER_BIND_TO_PORT or PORT of the platform",
    )
    device: str = Field(
        default="auto",
        description="where to compute: 'cpu', 'cuda' (the first GPU) or GPUs by their numbers, "
        "such as 'cuda:1' or 'cuda:0,1', each with a copy of the model; auto means: on the first "
        "GPU if CUDA works, else on the CPU",
    )
    gpu_memory_mb: int = Field(
        default=0,
        ge=0,
        description="megabytes of each GPU that the weights and batches of one model may take; "
        "CUDA itself takes more; 0 means: no limit",
    )
    precision: Literal["auto", "fp32", "fp16", "int8"] = Field(
        default="auto",
        description="variant of the model; auto means: the fastest one for the device",
    )
    runners: int = Field(
        default=0,
        ge=0,
        description="batches computed at the same time; 0 means: measured at start",
    )
    threads: int = Field(
        default=0, ge=0, description="threads that compute one batch; 0 means: measured at start"
    )
    max_batch_tokens: int = Field(
        default=0,
        ge=0,
        description="maximum tokens in one batch, padding included (texts x longest text); "
        "0 means: measured at start and, if no target latency is set, corrected under load",
    )
    cache_dir: Path | None = Field(
        default=None,
        description="directory that keeps the measurements for the next start; if not set, the "
        "user's cache directory is used, if there is one",
    )
    target_latency_ms: int = Field(
        default=0,
        ge=0,
        description="milliseconds in which a short text should be answered under load; the "
        "measurement at start chooses the settings with the highest throughput that meet this "
        "target; 0 means: no target",
    )
    max_queue_tokens: int = Field(
        default=65_536,
        ge=1,
        description="maximum tokens that wait in the queue; one request may use at most half of "
        "them; a request that does not fit gets 429",
    )
    cache_mb: int = Field(
        default=0,
        ge=0,
        description="megabytes in which each model keeps the results of its latest texts, so that "
        "a text that comes again is not computed again and gets its earlier result; 0 means: keep "
        "none",
    )
    max_texts: int = Field(default=1_000, ge=1, description="maximum texts in one request")
    max_text_chars: int = Field(default=50_000, ge=1, description="maximum characters in one text")
    max_body_bytes: int = Field(
        default=2_097_152, ge=1, description="maximum bytes of one request body"
    )
    max_inflight_bytes: int = Field(
        default=0,
        ge=0,
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
    drain_ms: int = Field(
        default=10_000,
        ge=0,
        description="milliseconds that requests in flight get to finish at shutdown",
    )
    api_keys: KeyDigests = Field(
        default=(),
        repr=False,
        description="keys, separated by ','; each request must send one of them as 'Authorization: "
        "Bearer KEY'; set them in the environment, because other users of the machine can see "
        "flags; without keys, everyone may send requests",
    )
    admin_keys: KeyDigests = Field(
        default=(),
        repr=False,
        description="keys, separated by ',', for POST /models/{name}/reload and "
        "/v2/repository/models/{name}/load; like --api-keys, set them in the environment; without "
        "keys, only the signal SIGHUP reloads models",
    )
    rate_limit: str = Field(
        default="",
        description="maximum requests of each key (without keys, of each address), such as "
        "'600/minute'; further requests get 429; each replica counts by itself",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="origins whose web pages may use the service, such as 'https://example.org', "
        "separated by ','; '*' means: all origins",
    )
    docs: Literal["on", "off"] = Field(default="on", description="serve /docs and /openapi.json")
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="port that serves only /metrics; 0 means: /metrics is on the service's port",
    )
    grpc_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="port for gRPC: Open Inference Protocol, TEI, health and reflection; 0 means: "
        "no gRPC; needs the extra 'grpc'",
    )
    otlp_endpoint: str = Field(
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

    @field_validator("host", mode="before")
    @classmethod
    def _default_host(cls, value: Any) -> Any:
        # An empty value means: not set. A socket would listen on all addresses.
        return value or cls.model_fields["host"].default

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        if not DEVICE.fullmatch(value):
            raise ValueError(
                "must be 'auto', 'cpu', 'cuda', or 'cuda:' and the numbers of GPUs, such as "
                "'cuda:1' or 'cuda:0,1'"
            )
        numbers = [*map(int, value.partition(":")[2].split(","))] if ":" in value else []
        if len(set(numbers)) < len(numbers):
            raise ValueError("name each GPU once")
        return value

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

    @field_validator("cache_dir", mode="before")
    @classmethod
    def _expand_home(cls, value: Any) -> Any:
        try:
            return Path(value).expanduser() if value else None  # empty means: not set
        except RuntimeError:
            raise ValueError("no home directory was found for '~'; give an absolute path") from None

    @field_validator("model", mode="before")
    @classmethod
    def _split_paths(cls, value: Any) -> Any:
        return tuple(filter(None, value.split(os.pathsep))) if isinstance(value, str) else value

    @field_validator("served_name", mode="before")
    @classmethod
    def _split_names(cls, value: Any, info: ValidationInfo) -> Any:
        names = _listed(value) if isinstance(value, str) else tuple(value)
        if not all(MODEL_NAME.fullmatch(name) for name in names):
            raise ValueError("a name must be up to 128 letters, digits, '.', '_' and '-'")
        models = len(info.data.get("model", ())) or 1
        if len(names) not in (0, models):
            raise ValueError(f"give as many names as models: {models}")
        if len(set(names)) < len(names):
            raise ValueError("give each model another name")
        return names

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _split_origins(cls, value: Any) -> Any:
        origins = _listed(value) if isinstance(value, str) else value
        if not all(ORIGIN.fullmatch(origin) for origin in origins):
            raise ValueError(
                "an origin must be a scheme and a host, such as https://example.org, or '*'"
            )
        return origins

    @field_validator("api_keys", "admin_keys", mode="before")
    @classmethod
    def _digest_keys(cls, value: Any) -> Any:
        if not isinstance(value, str):  # digests, from settings that were validated before
            return value
        keys = _listed(value)
        if value and not keys:  # "," by mistake must not let everyone in
            raise ValueError("give at least one key")
        if not all(API_KEY.fullmatch(key) for key in keys):
            raise ValueError("a key must be 8 to 256 printable ASCII characters without spaces")
        return tuple(hashlib.sha256(key.encode()).hexdigest().encode() for key in keys)

    @field_validator("rate_limit")
    @classmethod
    def _check_rate(cls, value: str) -> str:
        if value and not RATE.fullmatch(value):
            raise ValueError(
                "a rate must be a number per second, minute, hour or day, such as 600/minute"
            )
        return value


def _listed(value: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in value.split(","))))


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")
