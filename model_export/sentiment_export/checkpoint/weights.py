"""Reads weight files without PyTorch, and matches their tensors to the weights of a model.

The files are safetensors or ``.bin``, and may be anyone's. Code in them never runs, and sizes,
offsets and strides are checked before a view of the file is made. Values are read when they are
asked for, from the mapped file.

Checkpoints on the hub spell the same weights in several ways: TensorFlow's ``gamma`` and
``beta``, prefixes added by a trainer, and extra entries that no classifier reads. A weight that
does not match is an error with its name, both shapes and the likely cause. It is never replaced
by random numbers.
"""

import json
import mmap
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import SEEK_CUR
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sentiment_service.errors import UserError, first_line

from sentiment_export.checkpoint.family import Shape
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
AGAIN = "; copy or download it again"
OLD_FORM = 0x1950A86A20F9469CFC6C.to_bytes(10, "little")  # with which it begins
ORDER = "it was written on a machine with another order of bytes"


class Tensor(NamedTuple):
    """Where a tensor lies in a mapped file; ``start`` in bytes, ``strides`` in values.

    Like ``_Storage``, a tuple: what has been checked can be given no other state by a pickle.
    """

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
            raise UserError(f"{weights} names {file}, which is missing{AGAIN}")
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
    if not 2 <= length <= len(data) - 8:
        raise ValueError("it has no header of safetensors, or was cut")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
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
    if data[:4] == b"PK\x03\x04":
        held = _in_archive(path, data)
    elif OLD_FORM in data[:32]:
        held = _in_old_form(path, data)
    else:
        raise UserError(
            f"{path} is damaged or holds more than plain tensors, and code in it is never run: "
            "copy or download it again, or save it as safetensors"
        )
    entries = held if isinstance(held, dict) else {}
    if not entries or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in entries.items()
    ):
        raise UserError(
            f"{path} holds no dictionary of tensors (state dict): save model.state_dict()"
        )
    return dict(entries)


def _in_archive(path: Path, data: mmap.mmap) -> Any:
    """What a zip file holds, which PyTorch writes since 1.6."""
    with zipfile.ZipFile(path) as archive:
        names = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in names if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError("it has no list of tensors, or several")
        folder = pickles[0].removesuffix("data.pkl")
        values = f"{folder}data/"
        order = names.get(f"{folder}byteorder")
        if order is not None and archive.read(order) != b"little":
            raise ValueError(ORDER)
        places = {
            name.removeprefix(values): _stored(data, info)
            for name, info in names.items()
            if name.startswith(values)
        }
        with archive.open(pickles[0]) as listed:
            return _TensorUnpickler(listed, path, data, places).load()


def _in_old_form(path: Path, data: mmap.mmap) -> Any:
    """What a file from before PyTorch 1.6 holds, as many of the hub's first checkpoints do.

    Pickles follow each other, and then the values, each after its count. Only the last pickle says
    in which order, so that of the tensors is read twice: for the sizes, and with the places.
    """

    def loaded() -> Any:
        return _TensorUnpickler(data, path, data, {}).load()

    _, _, system = loaded(), loaded(), loaded()
    if system["little_endian"] is not True:
        raise ValueError(ORDER)
    begin = data.tell()
    unplaced = _TensorUnpickler(data, path, data, None)
    unplaced.load()
    places: dict[str, tuple[int, int]] = {}
    for key in loaded():
        storage = unplaced.storages[key]
        if int.from_bytes(data.read(8), "little") != storage.values:
            raise ValueError(f"the values {key} are not where they should be")
        places[key] = (data.tell(), storage.size)
        data.seek(storage.size, SEEK_CUR)
    data.seek(begin)
    return _TensorUnpickler(data, path, data, places).load()


def _stored(data: mmap.mmap, info: zipfile.ZipInfo) -> tuple[int, int] | None:
    """Where a file of an archive begins and how long it is; None if it is not stored as it is."""
    head = data[info.header_offset : info.header_offset + 30]
    if info.compress_type != zipfile.ZIP_STORED or head[:4] != b"PK\x03\x04":
        return None
    name, extra = (int.from_bytes(head[at : at + 2], "little") for at in (26, 28))
    start = info.header_offset + 30 + name + extra
    return (start, info.file_size) if start + info.file_size <= len(data) else None


# Where values lie, by their names; see ``_stored``. None where that is not known yet.
_Places = Mapping[str, tuple[int, int] | None] | None


class _Storage(NamedTuple):
    dtype: str
    start: int
    values: int

    @property
    def size(self) -> int:
        return self.values * int(np.dtype(_NUMPY[self.dtype]).itemsize)


class _TensorUnpickler(pickle._Unpickler):  # noqa: SLF001
    """Reads tensors and dictionaries; whatever else a pickle asks for is an error.

    It is the one written in Python: that in C takes memory for whatever index a damaged file names.
    """

    def __init__(self, listed: Any, path: Path, data: mmap.mmap, places: _Places) -> None:
        super().__init__(listed)
        self._path, self._data, self._places = path, data, places
        self.storages: dict[str, _Storage] = {}

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
        """The values of one or more tensors, which lie together at a place of the file."""
        tag, dtype, key, _, values, *view = pid
        places = {key: (0, len(self._data))} if self._places is None else self._places
        place = places.get(key) if isinstance(key, str) else None
        if tag != "storage" or place is None or any(view):
            raise ValueError("it lacks the values of a tensor")
        storage = self.storages[key] = _Storage(dtype, place[0], _whole(values))
        if storage.size > place[1]:
            raise ValueError(f"the values {key} were cut")
        return storage

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
    return tuple(map(_whole, numbers))


def _whole(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError("a size or an offset is no whole number")
    return number


# Of DataParallel and DistributedDataParallel, of Lightning, and of torch.compile.
TRAINERS_PREFIXES = ("module.", "model.", "_orig_mod.")
# Name parts that PEFT gives to the weights of an adapter, and to those that it stands beside.
ADAPTER = ("lora_", ".base_layer.", "base_model.model.")
# Types whose values are the weights themselves. Integers and 8-bit floats are quantized: without
# their scales, which lie elsewhere, they would be taken for other weights.
READ_DTYPES = ("float32", "float16", "bfloat16", "float64")
OF_A_LAYER = re.compile(r"layers?\.\d")
ANYTHING = re.compile("(?s).*")


@dataclass(frozen=True, slots=True)
class Weights(Mapping[str, NDArray[Any]]):
    """Weights as float32 under the names of the model; each is read when it is asked for.

    ``added`` rows are appended to the weight of a name: copies of one of its rows.
    """

    tensors: Mapping[str, Tensor]
    names: Mapping[str, str]  # name in the model -> name in the files
    where: str
    added: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # row, how many copies

    def __getitem__(self, name: str) -> NDArray[Any]:
        key = self.names[name]
        values = self.tensors[key].read()
        if not np.isfinite(values).all():
            raise UserError(
                f"{key} in {self.where} holds values that are not finite (NaN, or infinite in "
                "float32): the training probably failed; give another checkpoint"
            )
        if name in self.added:
            row, copies = self.added[name]
            values = np.concatenate([values, np.repeat(values[row : row + 1], copies, axis=0)])
        return values

    def release(self) -> None:
        """Give back the memory of what was read. It is read again if it is asked for."""
        for data in {id(tensor.data): tensor.data for tensor in self.tensors.values()}.values():
            data.madvise(mmap.MADV_DONTNEED)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def fit(
    expected: Mapping[str, Shape], prefix: str, tensors: Mapping[str, Tensor]
) -> dict[str, str]:
    """The name in the files of each ``expected`` weight that is there; exact matches win."""
    names: dict[str, str] = {}
    for name in sorted(tensors, key=lambda name: (name not in expected, name)):
        spelled = next((s for s in _spellings(name, prefix) if s in expected), None)
        if spelled is not None and spelled not in names:
            names[spelled] = name
    return {name: names[name] for name in expected if name in names}


def unread(names: Mapping[str, str], tensors: Iterable[str]) -> list[str]:
    """The tensors in the files that the model does not read."""
    read = set(names.values())
    return [key for key in tensors if key not in read]


def check_fit(
    names: Mapping[str, str],
    expected: Mapping[str, Shape],
    tensors: Mapping[str, Tensor],
    where: str,
    known_unused: re.Pattern[str] = ANYTHING,
) -> None:
    """Check that the tensors, as ``fit`` has named them, make up what config.json describes."""
    unused = unread(names, tensors)
    # First: quantized weights can have other shapes, and others beside them.
    for key in names.values():
        if (dtype := tensors[key].dtype) not in READ_DTYPES:
            raise UserError(
                f"{key} in {where} is of type {dtype}, probably quantized; give the "
                f"checkpoint from before, with weights in {', '.join(READ_DTYPES)}"
            )
    for name, key in names.items():
        found, wanted = list(tensors[key].shape), list(expected[name])
        if found != wanted:
            raise UserError(
                f"{key} is {found} in {where}, but config.json asks for {wanted}: it is probably "
                "from another checkpoint"
            )
    adapter = next((key for key in unused if any(part in key for part in ADAPTER)), None)
    if adapter is not None:
        raise UserError(
            f"{where} holds {adapter}, a weight of an adapter (PEFT, such as LoRA): merge the "
            "adapter first (merge_and_unload), and save the whole model"
        )
    if missing := [name for name in expected if name not in names]:
        instead = unused[0] if unused and not names else ""
        raise UserError(_what_is_missing(missing, instead, where))
    extra = [key for key in unused if OF_A_LAYER.search(key)]
    if extra:
        raise UserError(
            f"{where} holds {extra[0]}, which the model that config.json describes does not "
            "have: it has another number of layers, or computes otherwise than is exported"
        )
    if unknown := [key for key in unused if not known_unused.fullmatch(key)]:
        raise UserError(
            f"{where} holds {unknown[0]}, which is not a weight of the classifier that config.json "
            "describes; if no logit depends on it, load the checkpoint in "
            "AutoModelForSequenceClassification of transformers and save it again, which drops it"
        )


def _spellings(name: str, base_prefix: str) -> Iterator[str]:
    """Every model name that this entry may stand for, the likeliest first."""
    while True:
        plain = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        plain = plain.replace("LayerNorm.beta", "LayerNorm.bias")
        yield plain
        yield f"{base_prefix}.{plain}"
        prefix = next((prefix for prefix in TRAINERS_PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            return
        name = name.removeprefix(prefix)


def _what_is_missing(missing: Sequence[str], instead: str, where: str) -> str:
    listed = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    if instead:
        return (
            f"{where} lacks {listed}; it has {instead}, for example: save the state dict of the "
            "classifier alone, without what was built around it"
        )
    if any("classifier" in name or "pooler" in name for name in missing):
        return (
            f"{where} is not a complete sequence classifier: it lacks {listed}; fine-tune it "
            "first, or give the checkpoint of a classifier"
        )
    return (
        f"{where} lacks {listed}: the file is cut short, or config.json does not describe it "
        "(another number of layers, or code of its own, which is not run)"
    )
