"""transformers' pipeline behind FastAPI, as most tutorials do it: one text at a time."""

import os
from typing import Any

import uvicorn
from fastapi import FastAPI
from transformers import AutoTokenizer, pipeline

from benchmarks.peers.classifier import load_model

app = FastAPI()
classify = pipeline(
    "text-classification",
    model=load_model(),
    tokenizer=AutoTokenizer.from_pretrained(os.environ["CHECKPOINT"]),
    top_k=None,
)


@app.post("/classify")
def answer(body: dict[str, str]) -> Any:
    """Every label with its score."""
    return classify(body["inputs"], truncation=True, max_length=512)


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ["PORT"]), log_level="warning")
