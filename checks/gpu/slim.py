"""Empties a CUDA library of the machine code for other GPUs than one, so that it compresses.

Such a library holds the code for each compute capability in "fat binaries". Only their content is
overwritten with zeros, so nothing in the library moves.
"""

import mmap
from pathlib import Path

from checks.support.fatbin import MACHINE_CODE, entries


def slim(library: Path, capability: int) -> dict[int, int]:
    """Keep the machine code for ``capability`` (90 for 9.0) alone, in place.

    Returns the bytes of machine code that the library had, by capability.
    """
    found: dict[int, int] = {}
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for kind, code_for, start, size in entries(memory):
            if kind == MACHINE_CODE:
                found[code_for] = found.get(code_for, 0) + size
            if (kind, code_for) != (MACHINE_CODE, capability):
                memory[start : start + size] = bytes(size)
    return found
