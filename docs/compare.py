"""How often a cloud and this service agree about your texts: docs/migrate.md.

    python compare.py FILE.jsonl

Each line of the file has what the cloud answered for one text as ``cloud``, and at its end what
``sentiment classify`` has added.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

NEUTRAL = 0.25  # Google's scores between this and its negative are neutral here
SHOWN = 20


def label_of(cloud: Any) -> str:
    """The label in a document of Azure, an answer of AWS, or one of Google; "" of an error."""
    match cloud:
        case {"error": _} | {"ErrorCode": _}:
            return ""
        case {"documentSentiment": dict(google)} | {"document_sentiment": dict(google)}:
            score = google.get("score", 0)
            return "positive" if score > NEUTRAL else "negative" if score < -NEUTRAL else "neutral"
        case {"sentiment": str(label)} | {"Sentiment": str(label)}:
            return label.lower()
    raise ValueError(
        "`cloud` must be one document of Azure, or the answer of AWS or Google for one text"
    )


def added(row: dict[str, Any], name: str) -> Any:
    """What ``classify`` has added: after the user's members, and as none of them is called."""
    for key in reversed(row):
        if re.fullmatch(f"(predicted_)*{name}", key):
            return row[key]
    raise ValueError(
        "it has no result; give what `sentiment classify --output both.jsonl` has written"
    )


def compared(line: bytes) -> dict[str, Any]:
    """The text of a line, the cloud's label, and what ``classify`` has added."""
    try:
        row = json.loads(line)
    except ValueError:
        raise ValueError("it is not a line of JSON Lines") from None
    if not isinstance(row, dict) or not {"text", "cloud"} <= row.keys():
        raise ValueError("it must be an object with the members `text` and `cloud`")
    result = {"label": added(row, "label"), "score": added(row, "score")}
    return {"text": row["text"], "cloud": label_of(row["cloud"]), **result}


if len(sys.argv) != 2:
    sys.exit("usage: python compare.py FILE.jsonl")
file, every = sys.argv[1], []
try:
    lines = Path(file).read_bytes().splitlines()
except OSError as error:
    sys.exit(f"{file}: {error.strerror}")
for number, line in enumerate(lines, 1):
    try:
        every.append(compared(line))
    except ValueError as error:
        sys.exit(f"{file}, line {number}: {error}")
rows = [row for row in every if row["cloud"]]
if failed := len(every) - len(rows):
    print(f"{failed} of {len(every)} texts have an error of the cloud; they are left out")
pairs = Counter((row["cloud"], row["label"] or "no result") for row in rows)
print(f"{'cloud':>9}  {'here':>9}  texts")
for (cloud, here), count in pairs.most_common():
    print(f"{cloud:>9}  {here:>9}  {count}")
sure = [row for row in rows if row["cloud"] != "mixed"]
differ = [row for row in sure if row["cloud"] != row["label"]]
same = len(sure) - len(differ)
print(f"agreement, without mixed: {same} of {len(sure)} ({same / max(len(sure), 1):.1%})")
for row in sorted(differ, key=lambda row: -(row["score"] or 0))[:SHOWN]:  # where we are most sure
    print(f"{row['cloud']} / {row['label']} {row['score']}: {row['text']}")
