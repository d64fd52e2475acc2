"""Records a server's answers to the corpus of requests, or compares two servers.

    python -m benchmarks.replay record URL FILE
    python -m benchmarks.replay compare BEFORE AFTER

BEFORE and AFTER are each the URL of a server or a file that ``record`` wrote. ``compare`` prints
every difference and exits with 1 if there is one. Start the servers with their default settings
and the embedded model. The dates, times, ids and figures that differ from run to run are left out.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.replay.comparison import differences
from benchmarks.replay.corpus import CORPUS
from benchmarks.replay.recording import Recording, read, recorded, write


def main() -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(
        "benchmarks.replay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write a server's answers to a file")
    recording.add_argument("url")
    recording.add_argument("file", type=Path)
    comparing = commands.add_parser("compare", help="compare two servers or recordings")
    comparing.add_argument("before")
    comparing.add_argument("after")
    options = parser.parse_args()
    if options.command == "record":
        answers = recorded(options.url, CORPUS)
        write(options.file, answers.values())
        print(f"{len(answers)} requests recorded")
        return 0
    found = list(differences(_answers(options.before), _answers(options.after)))
    print("\n".join([*found, f"{len(found)} of {len(CORPUS)} requests are answered differently"]))
    return 1 if found else 0


def _answers(source: str) -> Recording:
    return recorded(source, CORPUS) if source.startswith("http://") else read(Path(source))


if __name__ == "__main__":
    sys.exit(main())
