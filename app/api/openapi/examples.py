"""Examples of answers for OpenAPI: what the embedded model answers to the examples of requests."""

MODEL = "minilm-l6-tweet-sentiment"
LABELS = ["negative", "neutral", "positive"]
_VERSION = {"name": MODEL, "revision": None, "precision": "int8"}
_PREDICTION = {
    "label": "positive",
    "score": 0.899,
    "scores": {"negative": 0.061, "neutral": 0.04, "positive": 0.899},
    "logits": {"negative": -0.946, "neutral": -1.47, "positive": 2.464},
    "tokens": 6,
    "truncated": False,
}
_EMPTY = {
    "error": {
        "code": "empty_text",
        "message": "the text is empty or blank; send at least one visible character",
    }
}
CLASSIFIED = {"model": _VERSION, "labels": LABELS, "results": [_PREDICTION, _EMPTY]}
PREDICTIONS = {"predictions": [_PREDICTION, _EMPTY]}
RANKED = [
    {"label": "positive", "score": 0.899},
    {"label": "negative", "score": 0.061},
    {"label": "neutral", "score": 0.04},
]
EXPLAINED = {
    "model": _VERSION,
    "label": "positive",
    "score": 0.482,
    "tokens": 10,
    "truncated": False,
    "words": [
        {"start": 0, "end": 1, "word": "I", "contribution": 0.005},
        {"start": 2, "end": 6, "word": "love", "contribution": 0.449},
        {"start": 7, "end": 12, "word": "this,", "contribution": 0.247},
        {"start": 13, "end": 16, "word": "but", "contribution": -0.342},
        {"start": 17, "end": 19, "word": "it", "contribution": -0.163},
        {"start": 20, "end": 22, "word": "is", "contribution": 0.025},
        {"start": 23, "end": 32, "word": "expensive", "contribution": -0.396},
    ],
}
TOKENS = {
    "model": _VERSION,
    "results": [
        {
            "text": "@user I love this!",
            "tokens": ["[CLS]", "@", "user", "i", "love", "this", "!", "[SEP]"],
            "ids": [101, 1030, 5310, 1045, 2293, 2023, 999, 102],
            "offsets": [[0, 0], [0, 1], [1, 5], [6, 7], [8, 12], [13, 17], [17, 18], [0, 0]],
            "sequence_ids": [None, 0, 0, 0, 0, 0, 0, None],
            "count": 8,
            "truncated": False,
        },
        _EMPTY,
    ],
}
LINES = '{"id": 1, "text": "I love this!"}\n{"id": 2, "text": ""}\n'
ANSWERED_LINES = (
    '{"id":1,"label":"positive","score":0.899,'
    '"scores":{"negative":0.061,"neutral":0.04,"positive":0.899},'
    '"logits":{"negative":-0.946,"neutral":-1.47,"positive":2.464},'
    '"tokens":6,"truncated":false}\n'
    '{"id":2,"error":{"code":"empty_text",'
    '"message":"the text is empty or blank; send at least one visible character"}}\n'
)
VLLM = {
    "id": "classify-0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    "object": "list",
    "created": 1_767_225_600,
    "model": MODEL,
    "data": [
        {"index": 0, "label": "positive", "probs": [0.061, 0.04, 0.899], "num_classes": 3},
    ],
    "usage": {
        "prompt_tokens": 6,
        "total_tokens": 6,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    },
}
SERVED = {
    "id": MODEL,
    "object": "model",
    "created": 1_767_225_600,
    "owned_by": "sentiment-service",
}
LISTED = {"object": "list", "data": [SERVED], "models": [MODEL]}
STATUS = {**SERVED, "name": MODEL, "ready": True}
SERVER = {
    "name": "sentiment-service",
    "version": "0.2.0",
    "extensions": [
        "binary_tensor_data",
        "model_configuration",
        "model_repository",
        "statistics",
    ],
}
METADATA = {
    "name": MODEL,
    "versions": ["1"],
    "platform": "onnxruntime_onnx",
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
    "outputs": [
        {"name": "label", "datatype": "BYTES", "shape": [-1]},
        {"name": "score", "datatype": "FP32", "shape": [-1]},
        {"name": "logits", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "scores", "datatype": "FP32", "shape": [-1, 3]},
    ],
    "parameters": {"labels": LABELS},
}
_CALIBRATION = {
    "method": "temperature",
    "temperature": 1.267,
    "loss": "brier",
    "texts": 1_280,
    "sha256": "cfcff3db5d504604e5ef289c7078352b6d1eb869deed2de5d467f742a714f7cb",
    "folds": 5,
    "ece": {"before": 0.058, "after": 0.037},
    "log_loss": {"before": 0.66, "after": 0.655},
}
_TUNING = "runners 2 x threads 1, at most 512 tokens a batch, as set"
INFO = {
    "version": "0.2.0",
    "python": "3.11.7",
    "onnxruntime": "1.31.1",
    "device": "cpu",
    "provider": "CPUExecutionProvider",
    "provider_options": {},
    "cpus": 2.0,
    "cpu": "AMD EPYC 9R14",
    "cpu_flags": "avx2 avx512f avx512_vnni avx512_bf16",
    "batch_invariant": True,
    "runners": 2,
    "threads": 1,
    "tuning": _TUNING,
    "calibration": _CALIBRATION,
    "limits": {
        "max_batch_tokens": 512,
        "max_queue_tokens": 65_536,
        "cache_mb": 0,
        "max_texts": 1_000,
        "max_text_chars": 50_000,
        "max_body_bytes": 2_097_152,
        "max_inflight_bytes": 1_073_741_824,
        "max_header_bytes": 32_768,
        "deadline_ms": 10_000,
    },
    "workers": [
        {
            "number": 0,
            "pid": 7,
            "stage": "ready",
            "restarts": 0,
            "connections": 3,
            "in_flight": 1,
        }
    ],
}
MODELS = {
    "models": [
        {
            **_VERSION,
            "labels": LABELS,
            "max_tokens": 512,
            "multi_label": False,
            "text_pairs": False,
            "preprocessing": "tweet",
            "device": "cpu",
            "provider": "CPUExecutionProvider",
            "provider_options": {},
            "parity": {"samples": 62, "max_abs_logit_diff": 0.138, "label_agreement": 0.968},
            "calibration": _CALIBRATION,
            "tuning": _TUNING,
        }
    ]
}
METRICS = (
    "# HELP sentiment_model_ready 1 while the model answers.\n"
    "# TYPE sentiment_model_ready gauge\n"
    f'sentiment_model_ready{{model="{MODEL}"}} 1.0\n'
)
