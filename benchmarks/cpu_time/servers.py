"""Servers to compare with the service. Each is a process of its own.

    python -m benchmarks.cpu_time.servers bare raw|fastapi
    python -m benchmarks.cpu_time.servers alone serve [FLAG]...

``bare raw`` is an ASGI callable, and ``bare fastapi`` is one FastAPI route, both with uvicorn and
without middleware. They read the body and answer with what the service would answer for as many
texts. ``alone`` is the service, but ``Model.infer`` returns fixed logits.
"""

import gc
import json
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import uvicorn
from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from pydantic import BaseModel
from sentiment_service.cli import command as cli
from sentiment_service.engine.model.model import Logits, Model
from sentiment_service.engine.text.text_tokenizer import Encoding
from starlette.types import Receive, Scope, Send

# As the service has them.
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
KEEP_ALIVE_S = 75
LOGITS = np.array([-1.0, -1.5, 2.5], dtype=np.float32)
RESULT = {
    "label": "positive",
    "score": 0.951203465461731,
    "scores": {"negative": 0.030128, "neutral": 0.018668532371520996, "positive": 0.9512034654},
    "logits": {"negative": -0.9637, "neutral": -1.452157974243164, "positive": 2.4767570495605},
    "tokens": 26,
    "truncated": False,
}


class Request(BaseModel):
    """Like the service's request, without its own checks."""

    inputs: str | list[str]
    model: str | None = None
    overflow: Literal["truncate", "error", "window"] = "truncate"
    split: Literal["sentences"] | None = None
    language: str = "en"


def answer_for(texts: int) -> dict[str, Any]:
    """An answer of the shape that the service's answers have."""
    return {
        "model": {
            "name": "minilm-l6-tweet-sentiment",
            "revision": None,
            "precision": "int8",
            "digest": "0" * 64,
        },
        "labels": ["negative", "neutral", "positive"],
        "results": [RESULT] * texts,
    }


async def raw(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI callable that answers ``POST /N`` as the service answers ``N`` texts."""
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    headers, body = _raw_answer(scope["path"])
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@cache
def _raw_answer(path: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body; they are made once for each path, before the measurement."""
    body = json.dumps(answer_for(int(path.removeprefix("/")))).encode()
    length = str(len(body)).encode()
    return [(b"content-type", b"application/json"), (b"content-length", length)], body


def fastapi_app() -> FastAPI:
    app = FastAPI(telemetry=NO_TELEMETRY)

    @app.post("/classify")
    async def classify(request: Request) -> dict[str, Any]:
        return answer_for(1 if isinstance(request.inputs, str) else len(request.inputs))

    return app


def serve_bare(app: Any) -> None:
    gc.freeze()  # as the service does
    uvicorn.run(
        app,
        port=0,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )


def _fixed_logits(model: Model, encodings: Sequence[Encoding]) -> list[Logits]:
    return [LOGITS] * len(encodings)


def main() -> int:
    kind, *arguments = sys.argv[1:]
    if kind == "bare":
        serve_bare({"raw": raw, "fastapi": fastapi_app()}[arguments[0]])
        return 0
    Model.infer = _fixed_logits  # type: ignore[assignment,method-assign]
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
