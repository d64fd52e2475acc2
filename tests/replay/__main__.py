"""Records a server's answers to the corpus of requests, or compares two servers.

    python -m tests.replay record URL FILE
    python -m tests.replay compare BEFORE AFTER

BEFORE and AFTER are each the URL of a server or a file that ``record`` wrote. ``compare`` prints
every difference and exits with 1 if there is one. Dates, times, made ids and other figures that
differ from run to run are left out.

Serve the embedded model with the default settings. With --guarded, other requests are sent, to
servers that were started like this:

    {guarded}
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.replay.comparison import differences
from tests.replay.corpus import CORPUS, GUARDED, GUARDED_FLAGS, RawRequest
from tests.replay.recording import Recording, read, recorded, write


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    guarded = " ".join(["sentiment serve", *GUARDED_FLAGS])
    parser = argparse.ArgumentParser(
        "tests.replay",
        description=(__doc__ or "").format(guarded=guarded),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--guarded", action="store_true", help="for servers with keys and CORS")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write a server's answers to a file")
    recording.add_argument("url", metavar="URL")
    recording.add_argument("file", metavar="FILE", type=Path)
    comparing = commands.add_parser("compare", help="compare two servers or recordings")
    comparing.add_argument("before", metavar="BEFORE")
    comparing.add_argument("after", metavar="AFTER")
    options = parser.parse_args(arguments)
    requests = GUARDED if options.guarded else CORPUS
    if options.command == "record":
        write(options.file, recorded(options.url, requests))
        print(f"{len(requests)} requests recorded")
        return 0
    before, after = (_answers(source, requests) for source in (options.before, options.after))
    found = list(differences(before, after))
    print("\n".join([*found, f"{len(found)} of {len(before)} requests have other answers"]))
    return 1 if found else 0


def _answers(source: str, requests: list[RawRequest]) -> Recording:
    return recorded(source, requests) if source.startswith("http://") else read(Path(source))


if __name__ == "__main__":
    sys.exit(main())
