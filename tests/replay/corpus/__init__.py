"""The requests. To add one, add a line to the module of its subject.

``CORPUS`` is for a server with its default settings, ``GUARDED`` for one with keys and CORS.
"""

from collections import Counter

from tests.replay.corpus import (
    bodies,
    classify,
    http,
    json_documents,
    open_inference,
    platforms,
    protocols,
    streams,
)
from tests.replay.corpus.guarded import GUARDED

__all__ = ["CORPUS", "GUARDED"]

CORPUS = [
    *classify.REQUESTS,
    *json_documents.REQUESTS,
    *protocols.REQUESTS,
    *open_inference.REQUESTS,
    *platforms.REQUESTS,
    *streams.REQUESTS,
    *bodies.REQUESTS,
    *http.REQUESTS,
]

_names = Counter(one.name for one in (*CORPUS, *GUARDED))
_twice = [name for name, count in _names.items() if count > 1]
assert not _twice, f"these names are given twice: {_twice}"
