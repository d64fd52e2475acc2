"""The requests. To add one, add a line to the module of its subject."""

from benchmarks.replay.corpus import classify, json_documents

CORPUS = [*classify.REQUESTS, *json_documents.REQUESTS]

_names = [one.name for one in CORPUS]
assert len(set(_names)) == len(_names), {name for name in _names if _names.count(name) > 1}
