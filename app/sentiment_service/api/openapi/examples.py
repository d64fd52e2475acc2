"""Examples of answers for OpenAPI: what the embedded model answers to the examples of requests.

Those of an adapter stand with its routes.
"""

MODEL = "minilm-l6-tweet-sentiment"
LABELS = ["negative", "neutral", "positive"]
DIGEST = "287507e5cc7e7720c9458bc22fb83141d70e1fde2a9f9565b17bfba3cab79099"
VERSION = {"name": MODEL, "revision": None, "precision": "int8", "digest": DIGEST}
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
METRICS = (
    "# HELP sentiment_model_ready 1 while the model answers.\n"
    "# TYPE sentiment_model_ready gauge\n"
    f'sentiment_model_ready{{model="{MODEL}"}} 1.0\n'
)
