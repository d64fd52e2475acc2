"""What `sentiment classify` makes of a table, with which clusters are compared."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from checks.cluster.rerun import ROOT

COMMAND = "import sys; from sentiment_service.cli.command import main; sys.exit(main())"


def classified(table: pa.Table, folder: Path) -> pa.Table:
    """The rows with their results. The table is written to ``rows.parquet``."""
    source, target = folder / "rows.parquet", folder / "plain.parquet"
    pq.write_table(table, source)
    arguments = ["classify", "--input", str(source), "--output", str(target)]
    subprocess.run([sys.executable, "-c", COMMAND, *arguments], cwd=ROOT, check=True)
    return pq.read_table(target)
