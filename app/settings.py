"""The service's settings: the only reader of the environment."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


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
        description="batches computed at once, 0 for what measuring finds best",
    )
    threads: int = Field(default=0, ge=0, description="threads that compute one batch, 0 likewise")
    max_batch_tokens: int = Field(
        default=0,
        ge=0,
        description="padded tokens in one batch (texts x longest text), 0 likewise",
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
    deadline_ms: int = Field(
        default=10_000, ge=1, description="milliseconds a request may take before it gets 504"
    )
    drain_ms: int = Field(
        default=10_000, ge=0, description="milliseconds for requests in flight at shutdown"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe messages to log"
    )

    @field_validator("model", mode="before")
    @classmethod
    def _split_paths(cls, value: Any) -> Any:
        return tuple(filter(None, value.split(os.pathsep))) if isinstance(value, str) else value


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
        raise ValueError(f"{source}: {first['msg']}, not {first['input']!r}") from None


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")
