"""CPU time of a text over gRPC beside POST /classify: ``python -m benchmarks.grpc_cost``.

One caller sends requests one after the other to the embedded model, in short slices that take
turns: HTTP, then gRPC. What counts is the CPU time of the whole process of the service.
"""

import argparse
import json
import socket
import statistics
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path

import grpc

from app.engine.model.bundle import EMBEDDED_BUNDLE, Bundle
from app.engine.model.load import load_model
from app.grpc_api.messages import message
from benchmarks.conditions import conditions
from benchmarks.service import Service
from benchmarks.texts import texts_of, tweet_lengths

Call = Callable[[Sequence[str]], None]
PLAN = ("--runners", "1", "--threads", "1", "--max-batch-tokens", "512")
TEXTS = 320  # of a slice


def main() -> None:
    """Print the CPU time of a text, and its ratio to that of HTTP in the slice before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds: int = parser.parse_args().rounds
    bundle = Bundle.open(EMBEDDED_BUNDLE)
    model = load_model(bundle, device="cpu", precision="int8", threads=1)
    texts = texts_of(model.tokenizer.library, tweet_lengths(TEXTS))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    print(*(f"{name}: {value}" for name, value in conditions().items()), sep="\n")
    with Service(EMBEDDED_BUNDLE, *PLAN, "--grpc-port", str(port)) as service:
        calls = dict(_calls(service.port, port))
        for size in (1, 16):
            spent: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(rounds + 1):
                for name, call in calls.items():
                    if size == 1 or name != "Predict":  # which takes one text
                        spent[name].append(_cpu_us(service.pid, call, texts, size))
            for name, all_us in spent.items():
                if us := all_us[1:]:  # the first round warms up
                    pairs = list(zip(us, spent["POST /classify"][1:], strict=True))
                    low, middle, high = statistics.quantiles([one / http for one, http in pairs])
                    more = statistics.median((one - http) * size for one, http in pairs)
                    print(
                        f"{size} texts a call, {name}: {statistics.median(us):.0f} µs a text, "
                        f"ratio {middle:.2f} (quartiles {low:.2f} to {high:.2f}), {more:+.0f} µs "
                        "a call"
                    )


def _calls(http_port: int, grpc_port: int) -> Iterator[tuple[str, Call]]:
    connection = HTTPConnection("127.0.0.1", http_port)

    def classify(texts: Sequence[str]) -> None:
        body = json.dumps({"inputs": texts}).encode()
        connection.request("POST", "/classify", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()

    yield "POST /classify", classify
    channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}")
    infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    predict = channel.unary_unary("/tei.v1.Predict/Predict")
    infer_request = message("inference.ModelInferRequest")
    predict_request = message("tei.v1.PredictRequest")

    def model_infer(texts: Sequence[str]) -> None:
        # The texts as Triton's client sends them: raw, each after its length.
        encoded = [text.encode() for text in texts]
        raw = b"".join(len(text).to_bytes(4, "little") + text for text in encoded)
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)]}
        request = infer_request(
            model_name=EMBEDDED_BUNDLE.name, inputs=[tensor], raw_input_contents=[raw]
        )
        infer(request.SerializeToString())

    def predict_one(texts: Sequence[str]) -> None:
        (text,) = texts
        predict(predict_request(inputs=text, truncate=True).SerializeToString())

    yield "ModelInfer", model_infer
    yield "Predict", predict_one


def _cpu_us(pid: int, call: Call, texts: Sequence[str], size: int) -> float:
    """CPU time of the service for one text, in microseconds."""
    before = _cpu_ns(pid)
    for start in range(0, len(texts), size):
        call(texts[start : start + size])
    return (_cpu_ns(pid) - before) / len(texts) / 1000


def _cpu_ns(pid: int) -> int:
    """CPU time of all threads until now. Those of the service live as long as it does."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


if __name__ == "__main__":
    main()
