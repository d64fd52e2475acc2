"""Examples of answers for OpenAPI: what the embedded model answers to the examples of requests.

Those of an adapter stand with its routes.
"""

MODEL = "minilm-l6-tweet-sentiment"
LABELS = ["negative", "neutral", "positive"]
VERSION = {"name": MODEL, "revision": None, "precision": "int8"}
PREDICTION = {
    "label": "positive",
    "score": 0.899,
    "scores": {"negative": 0.061, "neutral": 0.04, "positive": 0.899},
    "logits": {"negative": -0.946, "neutral": -1.47, "positive": 2.464},
    "tokens": 6,
    "truncated": False,
    "polarity": 0.838,
}
EMPTY = {
    "error": {
        "code": "empty_text",
        "message": "the text is empty or blank; send at least one visible character",
    }
}
CLASSIFIED = {"model": VERSION, "labels": LABELS, "results": [PREDICTION, EMPTY]}
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
            **VERSION,
            "labels": LABELS,
            "max_tokens": 512,
            "multi_label": False,
            "thresholds": None,
            "text_pairs": False,
            "language": "en",
            "preprocessing": "tweet",
            "device": "cpu",
            "provider": "CPUExecutionProvider",
            "provider_options": {},
            "parity": {"samples": 62, "max_abs_logit_diff": 0.068, "label_agreement": 1.0},
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
