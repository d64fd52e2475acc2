"""Empties a CUDA library of the machine code for other GPUs than one, so that it compresses.

Such a library holds the code for each compute capability in "fat binaries". Only their content is
overwritten with zeros, so nothing in the library moves.
"""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

MAGIC = struct.pack("<I", 0xBA55ED50)
CONTAINER = struct.Struct("<IHHQ")  # magic, version, size of this header, bytes that follow it
ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, size of the header, bytes, compute capability
MACHINE_CODE = 2  # an entry's kind; 1 is PTX


def slim(library: Path, capability: int) -> dict[int, int]:
    """Keep the machine code for ``capability`` (90 for 9.0) alone, in place.

    Returns the bytes of machine code that the library had, by capability.
    """
    found: dict[int, int] = {}
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for kind, code_for, start, size in _entries(memory):
            if kind == MACHINE_CODE:
                found[code_for] = found.get(code_for, 0) + size
            if (kind, code_for) != (MACHINE_CODE, capability):
                memory[start : start + size] = bytes(size)
    return found


def _entries(memory: mmap.mmap) -> Iterator[tuple[int, int, int, int]]:
    """Kind, capability, place and size of each code in all fat binaries."""
    place = memory.find(MAGIC)
    while place >= 0:
        at, end = place + len(MAGIC), place + CONTAINER.size
        if end <= len(memory):
            _, version, header, size = CONTAINER.unpack_from(memory, place)
            if version == 1 and header >= CONTAINER.size and place + header + size <= len(memory):
                at = place + header
                end = at + size
                while at + ENTRY.size <= end:
                    kind, _, header, size, code_for = ENTRY.unpack_from(memory, at)
                    if header < ENTRY.size or at + header + size > end:
                        break  # by chance, the bytes of something else begin like a fat binary
                    yield kind, code_for, at + header, size
                    at += header + size
        place = memory.find(MAGIC, at)
