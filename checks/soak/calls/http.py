"""Draws random requests to all routes, and checks that the answers are right to the last bit."""

import gzip
import json
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import brotli
import numpy as np
from sentiment_service.adapters import stream
from sentiment_service.adapters.comprehend import PREFIX
from sentiment_service.adapters.tensors import pack, unpack
from sentiment_service.engine.options import DEFAULTS, TextOptions
from sentiment_service.errors import Overloaded, ShuttingDown

from checks.soak.calls.call import Call, as_fp32, ranking, tensors
from checks.soak.calls.grpc import GrpcCalls
from checks.soak.calls.truth import ODD, SENTENCES, WINDOWS, Truth
from checks.soak.wire import Answer, request

REPLACED = {"code": ShuttingDown.code, "message": stream.REPLACED}
JSON = "application/json"
NDJSON = "application/x-ndjson"
COMPRESSED = 0.15  # share of the bodies
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": partial(brotli.compress, quality=5),
}
# GET routes, with bytes that their answer must contain.
READ = {
    "/health": b'"ready"',
    "/health/live": b'"live"',
    "/health/ready": b'"ready"',
    "/metrics": b"sentiment_model_ready",
    "/info": b'"limits"',
    "/models": b'"parity"',
    "/": b"<!doctype html>",
    "/web/{name}": b"fetch(",
    "/docs": b"swagger",
    "/docs/{name:path}": b"swagger",
    "/openapi.json": b'"/classify"',
    "/v1/models": b'"data"',
    "/v1/models/{name}": b'"ready"',
    "/ping": b"",
    "/execution-parameters": b"multi_record",
    "/v2": b"binary_tensor_data",
    "/v2/health/live": b'"live"',
    "/v2/health/ready": b'"ready"',
    "/v2/models/{name}": b'"logits"',
    "/v2/models/{name}/versions/{version}": b'"logits"',
    "/v2/models/{name}/ready": b'"ready"',
    "/v2/models/{name}/versions/{version}/ready": b'"ready"',
}
# What has a file's name in its path, with the largest file that a browser loads.
FILES = {
    "/web/{name}": ["api.js"],
    "/docs/{name:path}": ["docs.js", "swagger-ui/swagger-ui-bundle.js"],
}


class Calls:
    """Draws requests. Most of them have a single text."""

    def __init__(self, truth: Truth, order: random.Random) -> None:
        self.truth = truth
        self._order = order
        self.name = truth.model.name
        self.grpc = GrpcCalls(truth, order)
        self._drawn: dict[Callable[[], Call], float] = {
            self.one: 40,
            self.several: 10,
            self.passage: 3,
            self.windows: 1,
            self.hugging_face: 8,
            self.predict: 8,
            self.infer: 6,
            self.infer_binary: 6,
            self.vllm: 8,
            self.instances: 6,
            self.records: 3,
            self.azure: 2,
            self.comprehend: 2,
            self.google: 2,
            self.explain: 1,
            self.tokenize: 2,
            self.stream: 2,
            self.read: 15,
            self.grpc.infer: 10,
            self.grpc.infer_raw: 10,
            self.grpc.read: 4,
        }

    def draw(self) -> Call:
        """A random request."""
        (make,) = self._order.choices(list(self._drawn), list(self._drawn.values()))
        return make()

    def one(self) -> Call:
        """POST /classify with an ordinary text."""
        return self.classify(self._texts(1), single=True)

    def several(self) -> Call:
        """POST /classify with a list. One of its texts may be odd or long."""
        extra = self._order.choice([[], [], [self._order.choice(ODD)], [self._long()]])
        return self.classify(self._texts(self._order.randint(2, 24)) + extra)

    def passage(self) -> Call:
        """POST /classify with sentences."""
        return self.classify([self._order.choice(self.truth.passages)], SENTENCES)

    def windows(self) -> Call:
        """POST /classify with a text of more tokens than the model takes."""
        return self.classify([self._long()], WINDOWS)

    def classify(
        self, texts: Sequence[str], options: TextOptions = DEFAULTS, *, single: bool = False
    ) -> Call:
        """POST /classify with these texts."""
        body: dict[str, Any] = {"inputs": texts[0] if single else texts}
        body |= {"overflow": options.overflow, "split": options.split}
        return self._post(
            "/classify",
            body,
            texts,
            lambda answer: answer["results"] == [self.truth.of(text, options) for text in texts],
        )

    def hugging_face(self) -> Call:
        """POST /."""
        texts = self._texts(self._order.randint(1, 4))
        top = self._order.randint(1, 3)
        body = {"inputs": texts, "parameters": {"top_k": top}}

        def sound(answer: Any) -> bool:
            return bool(answer == [ranking(self.truth.of(text)["scores"])[:top] for text in texts])

        return self._post("/", body, texts, sound)

    def predict(self) -> Call:
        """POST /predict."""
        texts = self._texts(self._order.randint(1, 4))
        raw = self._order.random() < 0.5
        values = "logits" if raw else "scores"
        body = {"inputs": [[text] for text in texts], "raw_scores": raw}

        def sound(answer: Any) -> bool:
            return bool(answer == [ranking(self.truth.of(text)[values]) for text in texts])

        return self._post("/predict", body, texts, sound)

    def infer(self) -> Call:
        """POST /v2/models/NAME/infer in JSON."""
        texts = self._texts(self._order.randint(1, 4))
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}

        def sound(answer: Any) -> bool:
            found = {output["name"]: output["data"] for output in answer["outputs"]}
            found["polarity"] = as_fp32(found["polarity"])
            return found == tensors(self.truth, texts)

        route = "/v2/models/{name}/infer"
        return self._post(route, {"inputs": [tensor]}, texts, sound)

    def infer_binary(self) -> Call:
        """POST /v2/models/NAME/versions/1/infer with binary tensors in both directions."""
        texts = self._texts(self._order.randint(1, 4))
        packed = pack(texts)
        tensor: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": [len(texts)]}
        tensor["parameters"] = {"binary_data_size": len(packed)}
        wanted = {"binary_data_output": True}
        document = json.dumps({"inputs": [tensor], "parameters": wanted}).encode()

        def sound(answer: Answer) -> bool:
            start = int(answer.headers["inference-header-content-length"])
            found = {}
            for output in json.loads(answer.body[:start])["outputs"]:
                end = start + output["parameters"]["binary_data_size"]
                data, start = answer.body[start:end], end
                if output["datatype"] == "FP32":
                    found[output["name"]] = np.frombuffer(data, "<f4").tolist()
                else:
                    found[output["name"]] = unpack(data, len(texts))
            return found == tensors(self.truth, texts)

        route = "/v2/models/{name}/versions/{version}/infer"
        sent = request(
            "POST",
            self._path(route),
            document + packed,
            content_type="application/octet-stream",
            inference_header_content_length=str(len(document)),
        )
        return Call(f"POST {route}", sent, self._tokens(texts), sound, self.truth, len(texts))

    def vllm(self) -> Call:
        """POST /v1/classify."""
        texts = self._texts(self._order.randint(1, 4))

        def sound(answer: Any) -> bool:
            found = [item["probs"] for item in answer["data"]]
            return found == [list(self.truth.of(text)["scores"].values()) for text in texts]

        return self._post("/v1/classify", {"input": texts}, texts, sound)

    def instances(self) -> Call:
        """POST /v1/models/NAME:predict, or /predict with a body of Vertex AI."""
        texts = self._texts(self._order.randint(1, 4))
        route = self._order.choice(["/v1/models/{name}:predict", "/predict"])

        def sound(answer: Any) -> bool:
            return bool(answer == {"predictions": [self.truth.of(text) for text in texts]})

        return self._post(route, {"instances": texts}, texts, sound)

    def records(self) -> Call:
        """POST /invocations with lines of JSON."""
        texts = self._texts(self._order.randint(5, 40))

        def sound(answer: Answer) -> bool:
            found = [json.loads(line) for line in answer.body.splitlines()]
            return found == [self.truth.of(text) for text in texts]

        body = "".join(json.dumps(text) + "\n" for text in texts).encode()
        sent = self._sent("/invocations", body, "application/jsonlines")
        return Call("POST /invocations", sent, self._tokens(texts), sound, self.truth, len(texts))

    def azure(self) -> Call:
        """Azure Language's sentiment analysis, by one of its two versions."""
        text = self._order.choice(self.truth.passages)
        documents = {"documents": [{"id": "1", "text": text}]}
        later = {"kind": "SentimentAnalysis", "analysisInput": documents}
        route, body = self._order.choice(
            [("/text/analytics/v3.1/sentiment", documents), ("/language/:analyze-text", later)]
        )

        def sound(answer: Any) -> bool:
            (document,) = answer.get("results", answer)["documents"]
            found = [one["confidenceScores"] for one in document["sentences"]]
            return bool(found == [one["scores"] for one in self._sentences(text)])

        return self._post(route, body, [text], sound)

    def comprehend(self) -> Call:
        """AWS Comprehend's DetectSentiment."""
        text = self._order.choice(self.truth.passages)
        body = json.dumps({"Text": text, "LanguageCode": "en"}).encode()

        def sound(answer: Answer) -> bool:
            found = json.loads(answer.body)["SentimentScore"]
            scores = self.truth.of(text, SENTENCES)["scores"]
            left = 1 - found.pop("Mixed")
            return bool(found == {name.capitalize(): left * one for name, one in scores.items()})

        sent = request(
            "POST", "/", body, content_type=JSON, x_amz_target=f"{PREFIX}.DetectSentiment"
        )
        route = f"POST /#X-Amz-Target={PREFIX}"
        return Call(route, sent, self._tokens([text]), sound, self.truth, 1)

    def google(self) -> Call:
        """Google Natural Language's sentiment analysis, by one of its two versions."""
        text = self._order.choice(self.truth.passages)
        route = f"/{self._order.choice(['v1', 'v2'])}/documents:analyzeSentiment"

        def sound(answer: Any) -> bool:
            found = [one["sentiment"]["score"] for one in answer["sentences"]]
            return bool(found == [one["polarity"] for one in self._sentences(text)])

        call = self._post(route, {"document": {"content": text}}, [text], sound)
        return replace(call, overloaded=503)

    def explain(self) -> Call:
        """POST /explain."""
        text = self._order.choice(self.truth.short)

        def sound(answer: Any) -> bool:
            expected = self.truth.explanation(text)
            kept = {name: answer[name] for name in expected}
            return bool(kept == expected)

        computed = [text] * (len(text.split()) + 1)
        return self._post("/explain", {"inputs": text}, computed, sound)

    def tokenize(self) -> Call:
        """POST /tokenize."""
        texts = self._texts(self._order.randint(1, 4))
        expected = [self.truth.model.tokenizer.encode(text).ids for text in texts]
        return self._post(
            "/tokenize",
            {"inputs": texts},
            texts,
            lambda answer: [one["ids"] for one in answer["results"]] == expected,
        )

    def stream(self) -> Call:
        """POST /classify/stream with all lines sent at once."""
        texts = self._texts(self._order.randint(5, 40))
        lines = [json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts)]

        def sound(answer: Answer) -> list[bool]:
            found = [json.loads(line) for line in answer.body.splitlines()]
            expected = [{"id": n, **self.truth.of(text)} for n, text in enumerate(texts)]
            # The last line says why the rest is left: another model has taken the place of the
            # stream's, or bodies in flight leave no room. Then it stands for each of them.
            if found and _left(found[-1]):
                found = (found + found[-1:] * len(expected))[: len(expected)]
            pairs = zip(found, expected, strict=False)
            same = [one == other or _left(one) for one, other in pairs]
            return [len(found) == len(expected), *same]

        body = "".join(lines).encode()
        sent = self._sent("/classify/stream", body, NDJSON)
        return Call(
            "POST /classify/stream", sent, self._tokens(texts), sound, self.truth, len(texts)
        )

    def read(self) -> Call:
        """GET a page, a description, a probe or the metrics."""
        route, words = self._order.choice(list(READ.items()))
        sent = request("GET", self._path(route), b"", **self._accepted())
        return Call(
            f"GET {route}", sent, 8, lambda answer: words in answer.body.lower(), self.truth
        )

    def _post(
        self, route: str, body: Any, texts: Sequence[str], sound: Callable[[Any], bool]
    ) -> Call:
        sent = self._sent(self._path(route), json.dumps(body).encode(), JSON)

        def parsed_sound(answer: Answer) -> bool:
            return sound(json.loads(answer.body))

        return Call(
            f"POST {route}", sent, self._tokens(texts), parsed_sound, self.truth, len(texts)
        )

    def _sent(self, path: str, body: bytes, content_type: str) -> bytes:
        """A POST whose body and answer may be compressed."""
        headers = {"content_type": content_type}
        if self._order.random() < COMPRESSED:
            encoding, compress = self._order.choice(list(COMPRESS.items()))
            body, headers["content_encoding"] = compress(body), encoding
        return request("POST", path, body, **headers, **self._accepted())

    def _accepted(self) -> dict[str, str]:
        """The header of a client that takes compressed answers, as often as bodies are so."""
        if self._order.random() >= COMPRESSED:
            return {}
        return {"accept_encoding": self._order.choice(["gzip", "br"])}

    def _path(self, route: str) -> str:
        name = self._order.choice(FILES.get(route, [self.name]))
        path = route.replace("{name:path}", name).replace("{name}", name)
        return path.replace("{version}", "1")

    def _sentences(self, text: str) -> list[Any]:
        return list(self.truth.of(text, SENTENCES)["sentences"])

    def _tokens(self, texts: Sequence[str]) -> int:
        return sum(map(self.truth.tokens, texts))

    def _texts(self, count: int) -> list[str]:
        return self._order.choices(self.truth.tweets, k=count)

    def _long(self) -> str:
        return self._order.choice(self.truth.long)


def _left(line: dict[str, Any]) -> bool:
    """Whether a line of a stream's answer says that a text was left undone, as it may be."""
    error = line.get("error", {})
    return bool(error == REPLACED or error.get("code") == Overloaded.code)
