"""gRPC: the protocols' methods, and that no call bypasses keys, limits, metrics and shutdown."""

import re
import signal
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
import pytest
from sentiment_service.adapters.grpc.call import STATUS_CODES
from sentiment_service.adapters.grpc.messages import METHODS, POOL, SERVICES
from sentiment_service.adapters.grpc.server import expect_calls
from sentiment_service.errors import OutOfMemory, ServiceError
from sentiment_service.requests.limits import Paths
from sentiment_service.requests.service import Service
from sentiment_service.settings.settings import Settings

from tests.adapters.grpc_api.conftest import serving
from tests.support.serving import SLOW_COMMAND, Process, metric

KEY = (("authorization", "Bearer the-key-of-the-tests"),)
KEYS = {"SENTIMENT_API_KEYS": "the-key-of-the-tests"}
LIMITS = [
    "--max-body-bytes",
    "20000",
    "--max-inflight-bytes",
    "100000",
    "--max-texts",
    "4",
    "--max-header-bytes",
    "4096",
]
OIP = "/inference.GRPCInferenceService"
INFER = f"{OIP}/ModelInfer"
REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
PROTOS = Path(__file__).parents[2] / "app/sentiment_service/adapters/grpc/protos"


class Client:
    """Calls methods by their paths, with the messages that the service itself declares."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def call(
        self,
        path: str,
        metadata: Sequence[tuple[str, str]] = KEY,
        timeout: float | None = 20,
        **fields: Any,
    ) -> tuple[Any, dict[str, str]]:
        """The answer of a method, and the trailing metadata."""
        request = METHODS[path].request(**fields).SerializeToString()
        method = self.channel.unary_unary(
            path, response_deserializer=METHODS[path].response.FromString
        )
        answer, call = method.with_call(request, metadata=metadata, timeout=timeout)
        return answer, dict(call.trailing_metadata())

    def fails(self, path: str, **options: Any) -> grpc.RpcError:
        """The error that a method ends with."""
        with pytest.raises(grpc.RpcError) as failed:
            self.call(path, **options)
        return failed.value

    def stream(self, path: str, requests: Sequence[Mapping[str, Any]]) -> Any:
        """The answers of a method with streams."""
        request, response = METHODS[path].request, METHODS[path].response
        method = self.channel.stream_stream(path, response_deserializer=response.FromString)
        sent = (request(**fields).SerializeToString() for fields in requests)
        return method(sent, metadata=KEY, timeout=20)


@pytest.fixture(scope="module")
def service(bundle: Path) -> Iterator[tuple[Process, Client]]:
    """One service with keys and low limits, and a client of it."""
    with serving(bundle, *LIMITS, variables=KEYS) as (process, port), Client(port) as client:
        yield process, client


@pytest.fixture(scope="module")
def client(service: tuple[Process, Client]) -> Client:
    return service[1]


def asked(*texts: str) -> dict[str, Any]:
    """The fields of a request for these texts."""
    return {"model_name": "tiny", "inputs": tensor(*texts)}


def tensor(*texts: str, **fields: Any) -> list[dict[str, Any]]:
    """The input with these texts in its contents."""
    contents = {"bytes_contents": [text.encode() for text in texts]}
    described = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "contents": contents}
    return [described | fields]


def test_the_log_says_where_grpc_is(service: tuple[Process, Client]) -> None:
    """Its address is in the log before the service answers."""
    process, _ = service
    assert re.search(r"serving gRPC at 127\.0\.0\.1:\d+", process.first_lines)


def test_the_server_and_its_model_describe_themselves(client: Client) -> None:
    """Live, ready and metadata answer as the protocol says; version 1 is the only one."""
    assert client.call(f"{OIP}/ServerLive")[0].live
    assert client.call(f"{OIP}/ServerReady")[0].ready
    assert client.call(f"{OIP}/ModelReady", name="tiny", version="1")[0].ready
    assert client.call(f"{OIP}/ServerMetadata")[0].name == "sentiment-service"
    metadata = client.call(f"{OIP}/ModelMetadata", name="tiny")[0]
    shapes = {output.name: list(output.shape) for output in metadata.outputs}
    assert list(shapes) == ["label", "score", "logits", "scores", "polarity"]
    assert (shapes["scores"], shapes["polarity"]) == ([-1, 3], [-1])


def test_raw_texts_get_raw_outputs_and_contents_get_contents(client: Client) -> None:
    """Both forms of a request have the same results, each in the form of its request."""
    texts = ["I love this", "bad"]
    inferred, _ = client.call(INFER, id="7", **asked(*texts))
    assert inferred.id == "7"
    assert not inferred.raw_output_contents
    label, score, logits, scores, polarity = inferred.outputs
    assert list(scores.shape) == [2, 3]
    rows = np.reshape(scores.contents.fp32_contents, (2, 3))
    assert polarity.contents.fp32_contents == pytest.approx(rows[:, 2] - rows[:, 0])

    raw = b"".join(struct.pack("<I", len(text)) + text.encode() for text in texts)
    size = {"binary_data_size": {"int64_param": len(raw)}}  # as KServe's client sends it
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [2, 1], "parameters": size}]
    fields: dict[str, Any] = {
        "inputs": inputs,
        "raw_input_contents": [raw],
        "outputs": [{"name": "logits"}],
    }
    answer, _ = client.call(INFER, model_name="tiny", **fields)
    assert not answer.outputs[0].HasField("contents")
    assert struct.unpack("<6f", answer.raw_output_contents[0]) == tuple(
        logits.contents.fp32_contents
    )
    assert len(label.contents.bytes_contents) == len(score.contents.fp32_contents) == 2


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"model_name": "other"}, "NOT_FOUND", "no model has that name"),
        ({"model_version": "2"}, "NOT_FOUND", "in version 1 only"),
        ({"inputs": tensor("a", "b", "c", "d", "e")}, "INVALID_ARGUMENT", "at most 4"),
        ({"inputs": tensor("a", " ")}, "INVALID_ARGUMENT", "text 1, counted from 0"),
        ({"inputs": tensor("a", shape=[2])}, "INVALID_ARGUMENT", "shape says 2"),
        ({"inputs": tensor("a", datatype="FP32")}, "INVALID_ARGUMENT", "datatype"),
        ({"inputs": []}, "INVALID_ARGUMENT", "inputs"),
        ({"raw_input_contents": [b"x"]}, "INVALID_ARGUMENT", "send one of them"),
        (
            {"parameters": {"overflow": {"string_param": "no"}}},
            "INVALID_ARGUMENT",
            "parameters.overflow",
        ),
        ({"inputs": tensor("a" * 30_000)}, "RESOURCE_EXHAUSTED", "20000"),
    ],
)
def test_a_bad_request_is_an_error_that_names_the_fault(
    client: Client, fields: dict[str, Any], code: str, words: str
) -> None:
    """Each kind of fault has its status code and says what is accepted."""
    error = client.fails(INFER, **{**asked("a"), **fields})
    assert error.code().name == code
    assert words in error.details()


def test_only_probes_and_reflection_need_no_key(client: Client) -> None:
    """A call without a key is refused before its message is read; health is open."""
    closed = set(METHODS) - {
        f"{OIP}/ServerLive",
        f"{OIP}/ServerReady",
        *(path for path in METHODS if path.startswith("/grpc.")),
    }
    for path in closed:
        assert client.fails(path, metadata=()).code() is grpc.StatusCode.UNAUTHENTICATED, path
    status = client.call("/grpc.health.v1.Health/Check", metadata=())[0].status
    assert status == 1  # SERVING


def test_request_ids_errors_and_stages_are_in_the_trailing_metadata(client: Client) -> None:
    """The client's own id comes back, with the time of each stage or the code of the error."""
    metadata = (*KEY, ("x-request-id", "mine"))
    _, trailing = client.call(INFER, metadata, **asked("good"))
    assert trailing["x-request-id"] == "mine"
    assert "inference;dur=" in trailing["server-timing"]
    error = client.fails(INFER, metadata=metadata, **asked(" "))
    assert dict(error.trailing_metadata())["error-code"] == "empty_text"


def test_a_call_gives_back_its_bytes_however_it_ends(client: Client) -> None:
    """Messages that were answered with errors no longer count as in flight."""
    for _ in range(12):
        client.fails(INFER, **asked("good " * 3_000, " "))
    assert client.call(INFER, **asked("good " * 3_000))[0].outputs


def test_every_error_of_a_text_has_a_status() -> None:
    """No error that a text can end with is unknown to gRPC."""
    statuses = {kind.status for kind in ServiceError.__subclasses__() if kind.ends_texts}
    assert statuses <= STATUS_CODES.keys()
    assert STATUS_CODES[OutOfMemory.status] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_unknown_method_or_message_is_refused(client: Client) -> None:
    """Neither reaches a model, and both are counted."""
    gone = ("/tei.v1.Predict/Predict", f"{OIP}/RepositoryIndex", f"{OIP}/ModelStatistics")
    for path, code in (*((path, "UNIMPLEMENTED") for path in gone), (INFER, "INVALID")):
        with pytest.raises(grpc.RpcError) as failed:
            client.channel.unary_unary(path)(b"\xff\xff", metadata=KEY, timeout=20)
        assert failed.value.code().name.startswith(code)


def test_series_of_calls_exist_before_the_first_call() -> None:
    """As for HTTP, a rate sees the first increase, and an alert the first error."""
    service = Service(Settings(), Paths())
    expect_calls(service.metrics)
    value = service.metrics.registry.get_sample_value
    route = {"route": INFER, "operation": "classify"}
    for status, outcome in ((200, "ok"), (499, "client_disconnected"), (504, "client_deadline")):
        labels = {**route, "method": "GRPC", "status": str(status), "outcome": outcome}
        assert value("sentiment_http_requests_total", labels) == 0
    assert value("sentiment_http_request_duration_seconds_count", route) == 0


def test_metrics_count_calls_as_requests(service: tuple[Process, Client]) -> None:
    """A call adds to the same series as a request over HTTP, with the status of its error."""
    process, client = service
    labels = {"route": INFER, "method": "GRPC", "status": "422"}
    before = metric(process.client, "sentiment_http_requests_total", **labels)
    client.fails(INFER, **asked(" "))
    assert metric(process.client, "sentiment_http_requests_total", **labels) == before + 1
    # The scrape itself: no call is left.
    assert metric(process.client, "sentiment_http_requests_in_flight") == 1


def test_health_knows_the_services(client: Client) -> None:
    """Each service of this server has the server's state; other names are unknown."""
    check = "/grpc.health.v1.Health/Check"
    for service in SERVICES:
        assert client.call(check, service=service)[0].status == 1
    assert client.fails(check, service="other").code() is grpc.StatusCode.NOT_FOUND
    watch = client.stream("/grpc.health.v1.Health/Watch", [{"service": "other"}])
    assert next(watch).status == 3  # SERVICE_UNKNOWN
    watch.cancel()


def test_reflection_describes_every_service(client: Client) -> None:
    """Clients such as grpcurl get the services' names and the file of each."""
    questions: list[dict[str, Any]] = [
        {"list_services": ""},
        {"file_containing_symbol": "other"},
        *({"file_containing_symbol": name} for name in SERVICES),
    ]
    listed, unknown, *described = client.stream(REFLECT, questions)
    assert [one.name for one in listed.list_services_response.service] == SERVICES
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert all(one.file_descriptor_response.file_descriptor_proto for one in described)


def test_descriptors_are_those_of_the_proto_files() -> None:
    """``make protos`` was run after the last change: fields, numbers and methods are the same."""
    for file in PROTOS.glob("*.proto"):
        text = re.sub("//.*", "", file.read_text(encoding="utf-8"))
        known = POOL.FindFileByName(file.name)
        messages = list(known.message_types_by_name.values())
        messages += [inner for outer in messages for inner in outer.nested_types]
        enums = list(known.enum_types_by_name.values())
        enums += [inner for outer in messages for inner in outer.enum_types]
        expected = [
            (field.name, str(field.number))
            for message in messages
            if not message.GetOptions().map_entry
            for field in message.fields
        ] + [(value.name, str(value.number)) for enum in enums for value in enum.values]
        assert sorted(re.findall(r"(\w+) = (\d+);", text)) == sorted(expected), file.name
        methods = [
            method.name for service in known.services_by_name.values() for method in service.methods
        ]
        assert sorted(re.findall(r"rpc (\w+)", text)) == sorted(methods), file.name


def test_rate_limit_and_deadline_are_those_of_http(bundle: Path) -> None:
    """Calls and requests count together; a call whose message does not come in time ends."""
    limits = ["--rate-limit", "2/hour", "--deadline-ms", "100"]
    with serving(bundle, *limits) as (process, port), Client(port) as client:
        assert process.client.get("/info").status_code == 200
        silent = threading.Event()

        def nothing() -> Iterator[bytes]:
            silent.wait()
            yield b""

        with pytest.raises(grpc.RpcError) as late:
            client.channel.stream_unary(INFER)(nothing(), timeout=20)
        silent.set()
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "did not arrive" in late.value.details()
        refused = client.fails(INFER, **asked("good"))
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailing = dict(refused.trailing_metadata())
        assert trailing["error-code"] == "rate_limited"
        assert int(trailing["grpc-retry-pushback-ms"]) > 3_000_000


@pytest.mark.parametrize("trusted", [True, False])
def test_a_trusted_proxy_names_the_client_of_a_call(bundle: Path, trusted: bool) -> None:
    """Its X-Forwarded-For counts for the rate limit, and nobody else's does."""
    proxies = ["--trusted-proxies", "127.0.0.0/8" if trusted else "10.0.0.0/8"]
    with (
        serving(bundle, "--rate-limit", "1/hour", *proxies) as (_, port),
        Client(port) as client,
    ):
        # Several proxies may have written one line, or each a line of its own.
        first = [("x-forwarded-for", "203.0.113.9, 198.51.100.1")]
        other = [("x-forwarded-for", "198.51.100.2"), ("x-forwarded-for", "127.0.0.2")]
        no_address = [("x-forwarded-for", "a" * 1_000)]
        client.call(f"{OIP}/ServerMetadata", metadata=first)
        if trusted:
            client.call(f"{OIP}/ServerMetadata", metadata=other)
            client.call(f"{OIP}/ServerMetadata", metadata=no_address)
        for metadata in (other, no_address, []):
            error = client.fails(f"{OIP}/ServerMetadata", metadata=metadata)
            assert dict(error.trailing_metadata())["error-code"] == "rate_limited"


def test_shutdown_finishes_calls_and_ends_streams(bundle: Path) -> None:
    """A call in flight is answered; idle streams end; the exit code is 0."""
    with serving(bundle, command=SLOW_COMMAND) as (process, port), Client(port) as client:
        watch = client.stream("/grpc.health.v1.Health/Watch", [{}])
        assert next(watch).status == 1
        silent = threading.Event()

        def questions() -> Iterator[bytes]:
            yield METHODS[REFLECT].request(list_services="").SerializeToString()
            silent.wait()

        stream = client.channel.stream_stream(REFLECT)(questions(), timeout=20)
        next(stream)
        pending = [
            client.channel.unary_unary(INFER).future(
                METHODS[INFER].request(**asked(f"good {index}")).SerializeToString()
            )
            for index in range(20)
        ]
        pending[0].result()  # all others have arrived by now, or are refused
        process.signal(signal.SIGTERM)
        codes = {one.code().name for one in pending}
        assert codes <= {"OK", "UNAVAILABLE"}
        assert [one.status for one in watch] == [2]  # NOT_SERVING
        with pytest.raises(grpc.RpcError) as ended:
            next(stream)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        silent.set()
        code, log = process.wait()
    assert (code, "stopped" in log) == (0, True)
