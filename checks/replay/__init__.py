"""Replays a corpus of requests, odd ones included: a change of the code must not change answers."""
