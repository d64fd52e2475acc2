"""Commands that run Python on another kind of CPU than this machine's."""

import os
import shlex
import shutil
import struct
import subprocess
from pathlib import Path

import onnxruntime

from tests.support.serving import installed

CPUID, UD2 = b"\x0f\xa2", b"\x0f\x0b"


def without_vnni(directory: Path) -> dict[str, str]:
    """The environment in which this CPU's AVX-512 is there for ONNX Runtime, but not its VNNI."""
    compiler, disassembler = installed("gcc", "gcc"), installed("objdump", "binutils")
    source = Path(__file__).with_name("masked_cpuid.c")
    library = directory / "masked_cpuid.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    copy = directory / "site" / "onnxruntime"
    shutil.copytree(Path(onnxruntime.__file__).parent, copy)
    (extension,) = (copy / "capi").glob("onnxruntime_pybind11_state*.so")
    _trap_cpuid(extension, disassembler)
    path = os.pathsep.join([str(directory / "site"), str(Path(__file__).parents[3])])
    return {"LD_PRELOAD": str(library), "PYTHONPATH": path}


# With it as well, ONNX Runtime finds AVX2, but neither AVX-512 nor VNNI.
AVX2_ALONE = {"AVX2_ALONE": "1"}


def _trap_cpuid(extension: Path, disassembler: str) -> None:
    """Replace every cpuid of the library by an instruction that raises a signal."""
    # Of hundreds of MB, Python need not read more than these lines.
    pipe = f"{disassembler} -d --no-show-raw-insn {shlex.quote(str(extension))} | grep cpuid"
    listing = subprocess.run(["sh", "-c", pipe], check=True, capture_output=True, text=True).stdout
    addresses = [int(line.partition(":")[0], 16) for line in listing.splitlines()]
    content = bytearray(extension.read_bytes())
    segments = _segments(content)
    for address in addresses:
        (at,) = (
            offset + address - start
            for start, offset, size in segments
            if start <= address < start + size
        )
        assert content[at : at + 2] == CPUID
        content[at : at + 2] = UD2
    extension.write_bytes(content)


def _segments(elf: bytearray) -> list[tuple[int, int, int]]:
    """Address, offset in the file and size of what a 64-bit ELF file has loaded."""
    (table,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    found = []
    for number in range(count):
        entry = struct.unpack_from("<IIQQQQ", elf, table + number * size)
        kind, _, offset, address, _, in_file = entry
        if kind == 1:  # PT_LOAD
            found.append((address, offset, in_file))
    return found
