"""The ``sentiment`` command: what must come before imports that take long."""

import sys

from sentiment_service.server import process


def main() -> int:
    serving = sys.argv[1:2] == ["serve"]
    if serving:
        process.while_starting()
    try:
        from sentiment_service.cli.command import main as run

        return run()
    except KeyboardInterrupt:  # during the imports, which take a second on a slow machine
        return 130
    finally:
        if serving:
            process.while_ending()


if __name__ == "__main__":
    sys.exit(main())
