"""Keeps the results of texts, so that a text that comes again is not computed again."""

import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from hashlib import blake2b

from sentiment_service.engine.batching.fair_queue import Answer
from sentiment_service.engine.model.model import Scored
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import ServiceError

DIGEST_BYTES = 16
OBJECT_BYTES = 33  # of a bytes object, beside its content
# What CPython's OrderedDict takes for each entry: at most 168 bytes in its tables, which have up to
# six places per entry, and 32 in its list.
CONTAINER_BYTES = 200


class ResultCache:
    """The results of one model's latest texts. They take at most ``max_bytes`` bytes.

    The results are kept by a digest of the token ids, never with the text. When there is no room,
    the result that was not used for the longest time is dropped. ``on_lookup`` gets the numbers of
    hits and misses of each request. Use it on the event loop.
    """

    def __init__(
        self, max_bytes: int, *, labels: int, on_lookup: Callable[[int, int], None]
    ) -> None:
        self._labels = labels
        self._on_lookup = on_lookup
        # Bytes instead of lists: they are small, and the garbage collector does not visit them.
        self._numbers = struct.Struct(f"{2 * labels}d")
        self._entry_bytes = (
            _allocated(DIGEST_BYTES) + _allocated(self._numbers.size) + CONTAINER_BYTES
        )
        self._max_entries = max_bytes // self._entry_bytes
        self._results: OrderedDict[bytes, bytes] = OrderedDict()  # the latest use comes last

    @property
    def size(self) -> int:
        """The number of bytes that the results take, with all overhead."""
        return len(self._results) * self._entry_bytes

    async def answer(
        self,
        items: Sequence[Encoding],
        compute: Callable[[Sequence[Encoding]], Awaitable[Answer[Scored]]],
    ) -> Answer[Scored]:
        """The results from here, and from ``compute`` for those that are missing, in their order.

        Computed results are kept, errors are not. If nothing is missing, ``compute`` is not called,
        and the answer has taken no time.
        """
        digests = [blake2b(item.key, digest_size=DIGEST_BYTES).digest() for item in items]
        known = [self._get(digest) for digest in digests]
        places = [place for place, result in enumerate(known) if result is None]
        self._on_lookup(len(known) - len(places), len(places))
        answer: Answer[Scored] = Answer([], 0.0, 0.0)
        if places:
            answer = await compute([items[place] for place in places])
        for place, result in zip(places, answer.results, strict=True):
            if not isinstance(result, ServiceError):
                self._store(digests[place], result)
        computed = iter(answer.results)
        results = [next(computed) if result is None else result for result in known]
        return replace(answer, results=results)

    def _get(self, digest: bytes) -> Scored | None:
        packed = self._results.get(digest)
        if packed is None:
            return None
        self._results.move_to_end(digest)
        numbers = self._numbers.unpack(packed)
        return [*numbers[: self._labels]], [*numbers[self._labels :]]

    def _store(self, digest: bytes, result: Scored) -> None:
        logits, scores = result
        self._results[digest] = self._numbers.pack(*logits, *scores)
        if len(self._results) > self._max_entries:
            self._results.popitem(last=False)


def _allocated(size: int) -> int:
    """The bytes that Python allocates for a bytes object of this size: a multiple of 16."""
    return -(-(OBJECT_BYTES + size) // 16) * 16
