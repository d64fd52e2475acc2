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


def label_of(cloud: dict[str, Any]) -> str:
    """The label in a document of Azure, an answer of AWS, or one of Google."""
    if "documentSentiment" in cloud:
        score = cloud["documentSentiment"].get("score", 0)
        return "positive" if score > NEUTRAL else "negative" if score < -NEUTRAL else "neutral"
    return str(cloud.get("sentiment") or cloud["Sentiment"]).lower()


def added(row: dict[str, Any], name: str) -> Any:
    """What ``classify`` has added: after the user's members, and as none of them is called."""
    return next(row[key] for key in reversed(row) if re.fullmatch(f"(predicted_)*{name}", key))


with Path(sys.argv[1]).open(encoding="utf-8") as file:
    lines = [json.loads(line) for line in file]
every = [{**line, "label": added(line, "label"), "score": added(line, "score")} for line in lines]
rows = [row for row in every if "error" not in row["cloud"] and "ErrorCode" not in row["cloud"]]
if failed := len(every) - len(rows):
    print(f"{failed} of {len(every)} texts have an error of the cloud; they are left out")
pairs = Counter((label_of(row["cloud"]), row["label"] or "no result") for row in rows)
print(f"{'cloud':>9}  {'here':>9}  texts")
for (cloud, here), count in pairs.most_common():
    print(f"{cloud:>9}  {here:>9}  {count}")
sure = [row for row in rows if label_of(row["cloud"]) != "mixed"]
same = sum(label_of(row["cloud"]) == row["label"] for row in sure)
print(f"agreement, without mixed: {same} of {len(sure)} ({same / max(len(sure), 1):.1%})")
differ = [row for row in sure if label_of(row["cloud"]) != row["label"]]
for row in sorted(differ, key=lambda row: -(row["score"] or 0))[:SHOWN]:  # where we are most sure
    print(f"{label_of(row['cloud'])} / {row['label']} {row['score']}: {row['text']}")
