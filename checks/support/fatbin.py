"""The "fat binaries" of a CUDA library: machine code for each compute capability, and PTX."""

import mmap
import struct
from collections.abc import Iterator

MAGIC = struct.pack("<I", 0xBA55ED50)
CONTAINER = struct.Struct("<IHHQ")  # magic, version, size of this header, bytes that follow it
ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, size of the header, bytes, compute capability
PTX, MACHINE_CODE = 1, 2  # an entry's kind


def entries(library: mmap.mmap) -> Iterator[tuple[int, int, int, int]]:
    """Kind, capability (90 for 9.0), place and size of each code in all fat binaries."""
    place = library.find(MAGIC)
    while place >= 0:
        at, end = place + len(MAGIC), place + CONTAINER.size
        if end <= len(library):
            _, version, header, size = CONTAINER.unpack_from(library, place)
            if version == 1 and header >= CONTAINER.size and place + header + size <= len(library):
                at = place + header
                end = at + size
                while at + ENTRY.size <= end:
                    kind, _, header, size, code_for = ENTRY.unpack_from(library, at)
                    if header < ENTRY.size or at + header + size > end:
                        break  # by chance, the bytes of something else begin like a fat binary
                    yield kind, code_for, at + header, size
                    at += header + size
        place = library.find(MAGIC, at)
