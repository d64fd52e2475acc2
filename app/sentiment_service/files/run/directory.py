"""The directory in which a run writes its parts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sentiment_service.atomic_files import write_atomically


class RunDirectory:
    """A directory of this machine. A file appears in it only when it is complete.

    ``address`` is its path; a subclass may have another place.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    @property
    def path(self) -> Path:
        """The directory as a path of this machine."""
        return Path(self.address)

    def names(self) -> set[str]:
        """The names in the directory; none if it does not exist."""
        return {path.name for path in self.path.iterdir()} if self.path.is_dir() else set()

    def create(self) -> None:
        """Make the directory if it does not exist."""
        self.path.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if it does not exist."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file as ``write`` does it at a path on this machine."""
        write_atomically(self.path / name, write)

    def write_json(self, name: str, document: dict[str, Any]) -> None:
        """Write a document that people can read."""
        text = json.dumps(document, indent=1)
        self.write(name, lambda path: path.write_text(text, "utf-8"))

    def remove_leftovers(self) -> None:
        """Remove what writers that were killed have left."""
        for path in self.path.glob("*.tmp"):
            path.unlink(missing_ok=True)
