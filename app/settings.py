"""The service's settings: the only reader of the environment."""

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

API_KEY = re.compile(r"[!-+\--~]{8,256}")  # a comma separates keys
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+")
RATE = re.compile(r"[1-9]\d*/(second|minute|hour|day)")


class Settings(BaseSettings):
    """One frozen object. ``SENTIMENT_<NAME>`` sets a field, a flag of the same name wins."""

    model_config = SettingsConfigDict(env_prefix="SENTIMENT_", frozen=True)

    model: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(),
        description="bundle to load; give it again for several, the first is the default "
        f"(environment: separated by '{os.pathsep}') [default: the embedded model]",
    )
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on, 0 for any")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="where to compute; auto takes CUDA where it works"
    )
    precision: Literal["auto", "fp32", "fp16", "int8"] = Field(
        default="auto", description="variant of the model; auto takes the device's fastest"
    )
    runners: int = Field(
        default=0,
        ge=0,
        description="batches computed at once; 0 means: measured at start",
    )
    threads: int = Field(
        default=0, ge=0, description="threads that compute one batch; 0 means: measured at start"
    )
    max_batch_tokens: int = Field(
        default=0,
        ge=0,
        description="padded tokens in one batch (texts x longest text); 0 means: measured at "
        "start and, without a target latency, corrected under load",
    )
    cache_dir: Path | None = Field(
        default=None,
        description="directory that keeps what was measured for the next start; unless set, the "
        "user's cache directory, if there is one",
    )
    target_latency_ms: int = Field(
        default=0,
        ge=0,
        description="milliseconds in which a short text is to be answered under load, where "
        "measuring decides: the most throughput within them; 0 for throughput alone",
    )
    max_queue_tokens: int = Field(
        default=65_536,
        ge=1,
        description="tokens that may wait, half of them of one request; beyond that it gets 429",
    )
    max_texts: int = Field(default=1_000, ge=1, description="texts in one request")
    max_text_chars: int = Field(default=50_000, ge=1, description="characters in one text")
    max_body_bytes: int = Field(default=2_097_152, ge=1, description="bytes in a request body")
    max_inflight_bytes: int = Field(
        default=0,
        ge=0,
        description="total bytes of request bodies held at once; more get 429; 0 means: an eighth "
        "of the memory that the process may use",
    )
    max_header_bytes: int = Field(
        default=32_768, ge=1_024, description="bytes of a request's line and headers"
    )
    deadline_ms: int = Field(
        default=10_000,
        ge=1,
        description="milliseconds a request may take before it gets 504; a request may ask for "
        "less with x-request-timeout-ms",
    )
    drain_ms: int = Field(
        default=10_000, ge=0, description="milliseconds for requests in flight at shutdown"
    )
    api_keys: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        repr=False,
        description="keys that clients must send, as 'Authorization: Bearer KEY', separated by "
        "','; better set in the environment: other users see flags; without any, all may ask",
    )
    admin_keys: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        repr=False,
        description="likewise, for POST /models/{name}/reload; without any, only SIGHUP reloads",
    )
    rate_limit: str = Field(
        default="",
        description="requests that each key (without keys, each address) may send to this "
        "process, such as '600/minute'; beyond that it gets 429; each replica counts for itself",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="origins whose pages may use the service, such as 'https://example.org', "
        "separated by ','; '*' for all",
    )
    docs: Literal["on", "off"] = Field(default="on", description="serve /docs and /openapi.json")
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="port for /metrics and nothing else, 0 for the service's own",
    )
    otlp_endpoint: str = Field(
        default="",
        description="OpenTelemetry collector that gets traces over HTTP, such as "
        "http://localhost:4318; needs the extra 'otel'",
    )
    log_format: Literal["auto", "human", "json"] = Field(
        default="auto", description="how to log; auto is human at a terminal and json elsewhere"
    )
    access_log: Literal["on", "off"] = Field(
        default="on", description="log a line for each request, with the time of its stages"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe messages to log"
    )

    @field_validator("host", mode="before")
    @classmethod
    def _default_host(cls, value: Any) -> Any:
        # Empty is as good as unset; a socket would take it for all addresses.
        return value or cls.model_fields["host"].default

    @field_validator("max_inflight_bytes")
    @classmethod
    def _holds_a_body(cls, value: int, info: ValidationInfo) -> int:
        if 0 < value < (longest := info.data.get("max_body_bytes", 0)):
            raise ValueError(f"one body may have {longest} bytes (--max-body-bytes)")
        return value

    @field_validator("metrics_port")
    @classmethod
    def _is_another_port(cls, value: int, info: ValidationInfo) -> int:
        if 0 < value == info.data.get("port"):
            raise ValueError("the service itself listens there (--port)")
        return value

    @field_validator("cache_dir", mode="before")
    @classmethod
    def _expand_home(cls, value: Any) -> Any:
        try:
            return Path(value).expanduser() if value else None  # empty is as good as unset
        except RuntimeError:
            raise ValueError("there is no home directory for '~'; give the whole path") from None

    @field_validator("model", mode="before")
    @classmethod
    def _split_paths(cls, value: Any) -> Any:
        return tuple(filter(None, value.split(os.pathsep))) if isinstance(value, str) else value

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _split_origins(cls, value: Any) -> Any:
        origins = _listed(value) if isinstance(value, str) else value
        if not all(ORIGIN.fullmatch(origin) for origin in origins):
            raise ValueError("an origin is a scheme and a host, https://example.org, or '*'")
        return origins

    @field_validator("api_keys", "admin_keys", mode="before")
    @classmethod
    def _digest_keys(cls, value: Any) -> Any:
        """Digests are kept, not keys."""
        keys = _listed(value) if isinstance(value, str) else value
        if value and not keys:  # a slip should not open the door
            raise ValueError("there is no key in it")
        if not all(API_KEY.fullmatch(key) for key in keys):
            raise ValueError("a key is 8 to 256 printable ASCII characters without spaces")
        return tuple(hashlib.sha256(key.encode()).hexdigest() for key in keys)

    @field_validator("rate_limit")
    @classmethod
    def _check_rate(cls, value: str) -> str:
        if value and not RATE.fullmatch(value):
            raise ValueError("a rate is a number and second, minute, hour or day: 600/minute")
        return value


def load_settings(flags: dict[str, Any]) -> Settings:
    """Settings from the environment, overridden by ``flags`` (field name to value).

    Raises:
        ValueError: a value is not acceptable; the message names its flag or variable.
    """
    try:
        return Settings(**flags)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        source = flag(name) if name in flags else f"SENTIMENT_{name.upper()}"
        given = "" if name in ("api_keys", "admin_keys") else f", not {first['input']!r}"
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{source}: {message}{given}") from None


def _listed(value: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in value.split(","))))


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")
