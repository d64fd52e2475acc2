"""Compares the output of the killed run with that of the command without an engine."""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def main() -> None:
    """Exit with a message if a row is missing, twice or different."""
    folder = Path(sys.argv[1])
    parts = sorted((folder / "killed").glob("part-*.parquet"))
    found = pa.concat_tables([pq.read_table(part) for part in parts]).replace_schema_metadata()
    expected = pq.read_table(folder / "plain.parquet").replace_schema_metadata()
    ids = found["id"].to_pylist()
    if sorted(ids) != expected["id"].to_pylist():
        missing = set(expected["id"].to_pylist()) - set(ids)
        sys.exit(f"{len(ids)} rows, {len(set(ids))} different; {len(missing)} are missing")
    if not found.equals(expected):
        sys.exit("the rows are not equal to those of the command without an engine")
    if not (folder / "killed" / "_SUCCESS").exists():
        sys.exit("there is no _SUCCESS")
    print(f"{len(ids)} rows in {len(parts)} parts: each once, and equal to the last bit")


if __name__ == "__main__":
    main()
