"""The ``sentiment-export`` command: what must come before imports that take long."""

import sys


def main() -> int:
    try:
        from sentiment_export.cli import main as run

        return run()
    except KeyboardInterrupt:  # during the imports, which take a second on a slow machine
        return 130


if __name__ == "__main__":
    sys.exit(main())
