"""Answers that are compressed beforehand, because floods may ask for them."""

import gzip
from collections.abc import Mapping

from fastapi import Response

from app.api.http_exchange import HttpRequest


def packed_answer(request: HttpRequest, packed: bytes, headers: Mapping[str, str]) -> Response:
    """Answer with the content of a gzip file, unpacked for clients that do not accept gzip."""
    headers = {**headers, "vary": "Accept-Encoding"}  # so a Route does not compress it again
    if "gzip" in request.headers.get("accept-encoding", "").lower():
        return Response(packed, headers={**headers, "content-encoding": "gzip"})
    return Response(gzip.decompress(packed), headers=headers)
