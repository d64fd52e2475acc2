"""Classify a directory of Parquet files with Ray Data: ``python classify_parquet.py IN OUT``.

IN and OUT are paths that all nodes share, or addresses such as s3://BUCKET/tweets. The nodes need
the service with the extras `cpu` and `files`.
"""

import sys
from typing import Any

import ray
from sentiment_service import Classifier

CPUS = 1  # of an actor; Ray only counts them, so the classifier is told, too
ACTORS = (1, 2)  # at least and at most
ROWS = 2_000  # of a batch, and of what is done again if an actor is lost


class Sentiment:
    """An actor, which loads the model once."""

    def __init__(self) -> None:
        self.classifier = Classifier(runners=CPUS, threads=1)

    def __call__(self, batch: Any) -> Any:
        return self.classifier.add_columns(batch, "text")


def main(source: str, target: str) -> None:
    tweets = ray.data.read_parquet(source).repartition(target_num_rows_per_block=ROWS)
    actors = ray.data.ActorPoolStrategy(min_size=ACTORS[0], max_size=ACTORS[1])
    tweets.map_batches(
        Sentiment, batch_format="pyarrow", batch_size=ROWS, compute=actors, num_cpus=CPUS
    ).write_parquet(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
