"""Reads the tensors of weight files without PyTorch: safetensors, and ``.bin`` in its zip form.

The files may be anyone's. Code in them never runs, and sizes, offsets and strides are checked
before a view of the file is made. Values are read when they are asked for, from the mapped file.
"""

import json
import mmap
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sentiment_service.errors import UserError, first_line

from sentiment_export.checkpoint.layout import cure, shards

# Types of values: PyTorch's spelling, that of its storages, that of safetensors, numpy's. NumPy has
# no bfloat16, whose bits are the upper half of a float32's.
_TYPES = (
    ("float32", "FloatStorage", "F32", np.float32),
    ("float16", "HalfStorage", "F16", np.float16),
    ("bfloat16", "BFloat16Storage", "BF16", np.uint16),
    ("float64", "DoubleStorage", "F64", np.float64),
    ("int64", "LongStorage", "I64", np.int64),
    ("int32", "IntStorage", "I32", np.int32),
    ("int16", "ShortStorage", "I16", np.int16),
    ("int8", "CharStorage", "I8", np.int8),
    ("uint8", "ByteStorage", "U8", np.uint8),
    ("bool", "BoolStorage", "BOOL", np.bool_),
    ("complex64", "ComplexFloatStorage", "C64", np.complex64),
    ("float8_e4m3fn", "Float8_e4m3fnStorage", "F8_E4M3", np.uint8),
    ("float8_e5m2", "Float8_e5m2Storage", "F8_E5M2", np.uint8),
)
_OF_STORAGE = {storage: name for name, storage, _, _ in _TYPES}
_OF_SAFETENSORS = {code: name for name, _, code, _ in _TYPES}
_NUMPY: dict[str, Any] = {name: dtype for name, *_, dtype in _TYPES}
# A model of 1,000 layers has less. More is no model, and would only cost memory.
MOST_TENSORS = 50_000
MOST_HEADER_BYTES = 2**26
AGAIN = "; copy or download it again"
MOST_DIMENSIONS = 64  # NumPy's limit
TUPLES = (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)
OLD_FORM = 0x1950A86A20F9469CFC6C.to_bytes(10, "little")  # with which it begins


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies in a mapped file; ``start`` in bytes, ``strides`` in values."""

    data: mmap.mmap
    start: int
    dtype: str  # as PyTorch spells it
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self) -> NDArray[Any]:
        """The values; those of a float type as float32."""
        dtype = np.dtype(_NUMPY[self.dtype])
        strides = [stride * dtype.itemsize for stride in self.strides]
        values = np.ndarray(self.shape, dtype, self.data, self.start, strides)
        if self.dtype == "bfloat16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        if self.dtype not in ("float16", "float64"):
            return values
        with np.errstate(over="ignore"):  # what becomes infinite is found later
            return values.astype(np.float32)


def read_tensors(weights: Path) -> dict[str, Tensor]:
    """The tensors of a file, or of the shards of an index, by their names in the files."""
    tensors: dict[str, Tensor] = {}
    for file in shards(weights):
        path = weights.with_name(file)
        if not path.is_file():
            raise UserError(f"{weights} names {file}, which is missing{cure(path, AGAIN)}")
        read = _safetensors if path.suffix == ".safetensors" else _pickled
        try:
            tensors |= read(path)
        except UserError:
            raise
        except Exception as error:  # a damaged file can raise anything
            why = first_line(error)
            raise UserError(f"{path} is damaged: {why}{cure(path, AGAIN)}") from error
    return tensors


def _safetensors(path: Path) -> dict[str, Tensor]:
    data = _mapped(path)
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(len(data) - 8, MOST_HEADER_BYTES):
        raise ValueError("it has no header of safetensors, or was cut")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    _check_count(header)
    tensors = {}
    for name, entry in header.items():
        begin, end = map(_whole, entry["data_offsets"])
        shape, dtype = _sizes(entry["shape"]), _OF_SAFETENSORS.get(entry["dtype"])
        if dtype is None:
            raise UserError(f"{name} in {path} is of the unknown type {entry['dtype']}")
        start = 8 + length + begin
        size = prod(shape) * np.dtype(_NUMPY[dtype]).itemsize
        if end - begin != size or start + size > len(data):
            raise ValueError(f"{name} does not have the size that its shape asks for")
        strides = tuple(prod(shape[place + 1 :]) for place in range(len(shape)))
        tensors[name] = Tensor(data, start, dtype, shape, strides)
    _check_cover(header.values(), len(data) - 8 - length)
    return tensors


def _check_cover(entries: Iterable[Any], size: int) -> None:
    """Check that the tensors follow one another to the end, as the format has them.

    What a download that went on at the wrong place has inserted or left out moves them.
    """
    reached = 0
    for begin, end in sorted(entry["data_offsets"] for entry in entries):
        if begin != reached:
            raise ValueError("its tensors overlap, or have a gap between them")
        reached = end
    if reached != size:
        raise ValueError(f"it has {size - reached} bytes that are of no tensor")


def _pickled(path: Path) -> dict[str, Tensor]:
    data = _mapped(path)
    if data[:4] != b"PK\x03\x04":
        if b"ustar" in data[:512] or OLD_FORM in data[:32]:
            raise UserError(
                f"{path} is in the form from before PyTorch 1.6: load it with torch.load and save "
                "it again with torch.save, or as safetensors"
            )
        raise UserError(
            f"{path} is damaged or holds more than plain tensors, and code in it is never run: "
            "copy or download it again, or save it as safetensors"
        )
    _check_entries(path, data)
    with zipfile.ZipFile(path) as archive:
        names = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in names if name.endswith("/data.pkl")]
        if len(pickles) != 1 or names[pickles[0]].file_size > MOST_HEADER_BYTES:
            raise ValueError("it has no list of tensors, or too long a one")
        folder = pickles[0].removesuffix("data.pkl")
        values = f"{folder}data/"
        order = names.get(f"{folder}byteorder")
        if order is not None and (order.file_size != 6 or archive.read(order) != b"little"):
            raise ValueError("it was written on a machine with another order of bytes")
        places = {
            name.removeprefix(values): _stored(data, info)
            for name, info in names.items()
            if name.startswith(values)
        }
        with archive.open(pickles[0]) as listed:
            held = _TensorUnpickler(listed, path, data, places).load()
    entries = held if isinstance(held, dict) else {}
    if not entries or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in entries.items()
    ):
        raise UserError(
            f"{path} holds no dictionary of tensors (state dict): save model.state_dict()"
        )
    _check_count(entries)
    return dict(entries)


def _check_entries(path: Path, data: mmap.mmap) -> None:
    """Refuse an archive with too many entries, whatever number its end says.

    zipfile reads as many as the directory has room for, and makes an object of each.
    """
    with path.open("rb") as file:
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # noqa: SLF001
    # Where it is, and the size of the directory before it; 76 bytes of ZIP64 may lie between them.
    place, size = (end[9], end[5]) if end else (0, MOST_HEADER_BYTES + 1)
    if (
        size > MOST_HEADER_BYTES
        or data[max(0, place - size - 76) : place].count(b"PK\x01\x02") > MOST_TENSORS
    ):
        raise ValueError("it was cut, or has too many entries")


def _stored(data: mmap.mmap, info: zipfile.ZipInfo) -> tuple[int, int] | None:
    """Where a file of an archive begins and how long it is; None if it is not stored as it is."""
    head = data[info.header_offset : info.header_offset + 30]
    if info.compress_type != zipfile.ZIP_STORED or head[:4] != b"PK\x03\x04":
        return None
    name, extra = (int.from_bytes(head[at : at + 2], "little") for at in (26, 28))
    start = info.header_offset + 30 + name + extra
    return (start, info.file_size) if start + info.file_size <= len(data) else None


# Where values lie, by their names; see ``_stored``.
_Places = Mapping[str, tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    start: int
    values: int


_LOAD: dict[int, Callable[[Any], None]] = pickle._Unpickler.dispatch  # noqa: SLF001


def _tuple_by(code: int) -> Callable[[Any], None]:
    def load(unpickler: Any) -> None:
        _LOAD[code](unpickler)
        made = unpickler.stack[-1]
        parts = [part for part in made if isinstance(part, tuple)]
        longest = max(map(len, [made, *parts]))
        if longest > MOST_DIMENSIONS or any(isinstance(one, tuple) for one in chain(*parts)):
            raise ValueError("it has a tuple that is longer or deeper than any of torch.save")

    return load


def _build(unpickler: Any) -> None:
    """Give a dictionary its attributes. What has been checked must stay as it is."""
    if not isinstance(unpickler.stack[-2], OrderedDict):
        raise ValueError("it changes what is no dictionary")
    _LOAD[pickle.BUILD[0]](unpickler)


class _TensorUnpickler(pickle._Unpickler):  # noqa: SLF001
    """Reads tensors and dictionaries; whatever else a pickle asks for is an error.

    It is the one written in Python: that in C makes room for whatever index a pickle names. A tuple
    that has itself doubled forty times would take hours to hash, and more memory than there is to
    print; so tuples are as short and as flat as those of ``torch.save``.
    """

    dispatch: ClassVar = {
        **_LOAD,
        pickle.BUILD[0]: _build,
        **{code[0]: _tuple_by(code[0]) for code in TUPLES},
    }

    def __init__(self, listed: Any, path: Path, data: mmap.mmap, places: _Places) -> None:
        super().__init__(listed)
        self._path, self._data, self._places = path, data, places

    def find_class(self, module: str, name: str) -> Any:
        """What may be called, by its name: what makes tensors, and dictionaries in order."""
        called = {
            **{f"torch.{storage}": dtype for storage, dtype in _OF_STORAGE.items()},
            "collections.OrderedDict": OrderedDict,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
        }
        if (full := f"{module}.{name}") in called:
            return called[full]
        raise UserError(
            f"{self._path} holds more than plain tensors ({full}), and code in it is never run: "
            "copy or download it again, or save it as safetensors"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        """The values of one or more tensors, which lie in a file of their own in the archive."""
        tag, dtype, key, _, values = pid
        place = self._places.get(key) if isinstance(key, str) else None
        if tag != "storage" or place is None:
            raise ValueError(f"it lacks the values {key}")
        if _whole(values) * np.dtype(_NUMPY[dtype]).itemsize > place[1]:
            raise ValueError(f"the values {key} were cut")
        return _Storage(dtype, place[0], values)

    def _tensor(self, storage: Any, offset: Any, size: Any, strides: Any, *_: Any) -> Tensor:
        shape, steps = _sizes(size), _sizes(strides)
        if not isinstance(storage, _Storage) or len(shape) != len(steps):
            raise ValueError("a tensor is not described as torch.save does it")
        last = _whole(offset) + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        count = prod(list(shape))
        if count > storage.values or (count and last >= storage.values):
            raise ValueError("a tensor does not lie within its values")
        start = storage.start + offset * np.dtype(_NUMPY[storage.dtype]).itemsize
        return Tensor(self._data, start, storage.dtype, shape, steps)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _sizes(numbers: Any) -> tuple[int, ...]:
    if len(numbers) > MOST_DIMENSIONS:
        raise ValueError(f"a tensor has {len(numbers)} dimensions")
    return tuple(map(_whole, numbers))


def _whole(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError("a size or an offset is no whole number")
    return number


def _check_count(entries: Mapping[str, Any]) -> None:
    if len(entries) > MOST_TENSORS:
        raise ValueError(f"it holds {len(entries)} tensors, more than any model")
