"""Weight files are read without PyTorch: values equal to its own, and nothing else ever runs."""

import io
import json
import pickle
import struct
import sys
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentiment_export.checkpoint.weights import OLD_FORM, Weights, read_tensors
from sentiment_service.errors import UserError

BASE = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 7
TENSORS: dict[str, torch.Tensor] = {
    "plain": BASE,
    "transposed": BASE.T,
    "every other column": BASE[:, ::2],
    "from the second row": BASE[1:],
    "half": BASE.half(),
    "bfloat16": BASE.bfloat16(),
    "double": BASE.double(),
    "ids": torch.arange(5)[None],
    "int8": torch.tensor([-3, 4], dtype=torch.int8),
    "mask": torch.tensor([True, False]),
    "scalar": torch.tensor(2.5),
    "none": torch.zeros(0, 3),
    "parameter": torch.nn.Parameter(BASE + 1),
}


def _read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.read() for name, tensor in read_tensors(path).items()}


def _save_in_old_form(tensors: Any, path: Path) -> None:
    """As PyTorch did before 1.6."""
    torch.save(tensors, path, _use_new_zipfile_serialization=False)


def _save_safetensors(tensors: Any, path: Path) -> None:
    save_file({n: t.detach().clone().contiguous() for n, t in tensors.items()}, path)


@pytest.mark.parametrize(
    ("name", "save"),
    [
        pytest.param("pytorch_model.bin", torch.save, id="archive"),
        pytest.param("pytorch_model.bin", _save_in_old_form, id="old form"),
        pytest.param("model.safetensors", _save_safetensors, id="safetensors"),
    ],
)
@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_values_equal_those_of_pytorch(
    tmp_path: Path, name: str, save: Callable[[Any, Path], None], kind: type[dict[str, Any]]
) -> None:
    """Strided, shared and empty tensors and every float type, which become float32."""
    tensors = kind(TENSORS)
    save(tensors, tmp_path / name)
    read = _read(tmp_path / name)
    assert read.keys() == tensors.keys()
    for key, values in read.items():
        tensor = tensors[key].detach()
        expected = tensor.float() if tensor.is_floating_point() else tensor
        assert values.dtype == expected.numpy().dtype
        np.testing.assert_array_equal(values, expected.numpy())


@pytest.mark.parametrize("save", [torch.save, _save_in_old_form])
def test_a_state_dict_of_a_module_is_read(
    tmp_path: Path, save: Callable[[Any, Path], None]
) -> None:
    """With its metadata, as most files on the hub are."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    save(module.state_dict(), tmp_path / "pytorch_model.bin")
    read = _read(tmp_path / "pytorch_model.bin")
    assert {name: values.tolist() for name, values in read.items()} == {
        name: tensor.tolist() for name, tensor in module.state_dict().items()
    }


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_only_what_is_read_takes_memory(tmp_path: Path, name: str) -> None:
    """Weights of 64 MB are listed in less than one, and each is a view of the file."""
    tensors = {f"layer.{n}": torch.ones(1024, 1024) for n in range(16)}
    save = torch.save if name.endswith(".bin") else save_file
    save(tensors, tmp_path / name)
    tracemalloc.start()
    listed = read_tensors(tmp_path / name)
    assert listed["layer.3"].read()[5, 7] == 1
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


class _Asks:
    """A pickle of it asks for what ``torch.save`` never does."""

    def __init__(self, *reduced: Any) -> None:
        self._reduced = reduced

    def __reduce__(self) -> Any:
        return self._reduced


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from Linux's /proc")
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_what_was_read_is_given_back_and_can_be_read_again(tmp_path: Path, name: str) -> None:
    """Weights that were released take no memory, and have the same values as before."""
    path, size = tmp_path / name, 2**20
    tensors = {"a": torch.arange(size, dtype=torch.float32)}
    torch.save(tensors, path) if path.suffix == ".bin" else save_file(tensors, path)
    weights = Weights(read_tensors(path), {"a": "a"}, name)
    before = weights["a"].copy()
    read = _resident_kb(path)
    weights.release()
    assert (read >= size * 4 // 1024, _resident_kb(path)) == (True, 0)
    np.testing.assert_array_equal(weights["a"], before)


def _resident_kb(path: Path) -> int:
    """The part of a mapped file that is in this process's memory."""
    _, _, mapped = Path("/proc/self/smaps").read_text().partition(f" {path}\n")
    return int(mapped.partition("\nRss:")[2].split()[0])


def _archive(path: Path, listed: bytes, storage: bytes = bytes(96), **options: Any) -> None:
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("archive/data.pkl", listed)
        archive.writestr("archive/data/0", storage)


class _Storage:
    """How a storage of 24 float32 is named in a pickle."""


class _Pickler(pickle.Pickler):
    values = 24

    def persistent_id(self, item: Any) -> Any:
        if isinstance(item, _Storage):
            return ("storage", torch.FloatStorage, "0", "cpu", self.values)
        return None


def _listed(*arguments: Any, values: int = 24) -> bytes:
    """The pickle of one tensor that is rebuilt with these arguments after its storage."""
    held = io.BytesIO()
    pickler = _Pickler(held, 2)
    pickler.values = values
    rebuild = torch._utils._rebuild_tensor_v2
    pickler.dump({"w": _Asks(rebuild, (_Storage(), *arguments, False, OrderedDict()))})
    return held.getvalue()


@pytest.mark.parametrize(
    "arguments",
    [
        (0, (4, 7), (7, 1)),  # more values than there are
        (1, (4, 6), (6, 1)),  # one behind the end
        (-1, (4, 6), (6, 1)),
        (0, (4, 6), (-6, 1)),
        (0, (4, 6), (60, 1)),
        (0, (2, 2), (2**62, 1)),
        (0, (10**6, 10**6), (0, 0)),  # a terabyte of one value
        (0, (4, 6), (6,)),
        (0, (4, 6.0), (6, 1)),
        ("0", (4, 6), (6, 1)),
        (2**70, (4, 6), (6, 1)),
    ],
)
def test_a_tensor_outside_its_storage_is_refused(tmp_path: Path, arguments: Any) -> None:
    """Sizes, offset and strides are checked before a view is made; the sound one is read."""
    path = tmp_path / "pytorch_model.bin"
    _archive(path, _listed(0, (4, 6), (6, 1)))
    assert _read(path)["w"].shape == (4, 6)
    _archive(path, _listed(*arguments))
    with pytest.raises(UserError, match=r"pytorch_model\.bin is damaged: "):
        read_tensors(path)


def test_a_storage_that_was_cut_is_refused(tmp_path: Path) -> None:
    """The pickle names more values than the archive has, or values that it lacks."""
    path = tmp_path / "pytorch_model.bin"
    _archive(path, _listed(0, (4, 6), (6, 1)), storage=bytes(95))
    with pytest.raises(UserError, match="is damaged: the values 0 were cut"):
        read_tensors(path)
    _archive(path, _listed(0, (4, 6), (6, 1)), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match="is damaged"):
        read_tensors(path)


@pytest.mark.parametrize(
    "reduced",
    [
        (print, ("it ran",)),
        (eval, ("print('it ran')",)),
        (getattr, ("", "join")),
        (io.open, ("made", "w")),
        (np.zeros, (3,)),
    ],
)
def test_no_code_of_a_pickle_runs(
    tmp_path: Path, reduced: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that asks for anything but tensors is refused, and the line names what it asked."""
    path = tmp_path / "pytorch_model.bin"
    asks = pickle.dumps({"w": _Asks(*reduced)})
    _archive(path, asks)
    with pytest.raises(UserError, match=r"more than plain tensors .* is never run"):
        read_tensors(path)
    path.write_bytes(pickle.dumps(int.from_bytes(OLD_FORM, "little"), 2) + asks)
    with pytest.raises(UserError, match=r"more than plain tensors .* is never run"):
        read_tensors(path)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "made").exists()


def _without_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def _old_without_end(path: Path) -> None:
    _save_in_old_form(TENSORS, path)
    _without_end(path)


def _old_with_values_moved(path: Path) -> None:
    _save_in_old_form(TENSORS, path)
    path.write_bytes(path.read_bytes().replace(BASE.numpy().tobytes(), BASE.numpy().tobytes()[4:]))


def _changed_after_the_check(path: Path) -> None:
    # The state of a tensor, or of a storage: all its fields anew.
    state = pickle.dumps([1, 0, "float32", (2**40,), (0,)], 2)[2:-1]
    listed = _listed(0, (4, 6), (6, 1))
    assert listed.endswith(b"s.")
    _archive(path, listed[:-2] + state + b"bs.")


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (_changed_after_the_check, "is damaged"),
        (_without_end, "is damaged"),
        (_old_without_end, "is damaged"),
        # The order of the values is that of their places in memory: those moved may be the last.
        (_old_with_values_moved, "damaged: (the values [0-9]+ are not where|seek out of range)"),
        (lambda path: path.write_bytes(b""), "is damaged"),
        (lambda path: path.write_bytes(b"PK\x03\x04".ljust(40)), "is damaged"),
        (lambda path: _archive(path, pickle.dumps([1, 2])), "holds no dictionary of tensors"),
        (lambda path: _archive(path, pickle.dumps({"w": [1]})), "holds no dictionary of tensors"),
        (lambda path: _archive(path, b"\x80\x02}q\x01"), "is damaged"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, write: Callable[[Path], object], says: str
) -> None:
    """In one line."""
    path = tmp_path / "pytorch_model.bin"
    torch.save(TENSORS, path)
    write(path)
    with pytest.raises(UserError, match=says) as caught:
        read_tensors(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_damaged_index_takes_no_memory(tmp_path: Path) -> None:
    """A pickle may keep an object under any number; Python's unpickler in C has room up to it."""
    path = tmp_path / "pytorch_model.bin"
    _archive(path, b"\x80\x02}r\xff\xff\x7f\x00.")
    tracemalloc.start()
    with pytest.raises(UserError, match="holds no dictionary of tensors"):
        read_tensors(path)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def _inserted(content: bytes) -> bytes:
    return content[:-30] + bytes(8) + content[-30:]


def _of_the_same_bytes(content: bytes) -> bytes:
    return content.replace(b"[24,48]", b"[0,24] ")[:-24]


def _with_a_gap(content: bytes) -> bytes:
    return content.replace(b"[24,48]", b"[28,52]") + bytes(4)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_inserted, "it has 8 bytes that are of no tensor"),
        (lambda content: content + bytes(5), "it has 5 bytes that are of no tensor"),
        (_of_the_same_bytes, "its tensors overlap, or have a gap between them"),
        (_with_a_gap, "its tensors overlap, or have a gap between them"),
    ],
)
def test_safetensors_whose_tensors_were_moved_are_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes], said: str
) -> None:
    """What a download that went on at the wrong place leaves has values, but others."""
    path = tmp_path / "model.safetensors"
    ones = torch.ones(2, 3)
    save_file({"a": ones, "b": 2 * ones}, path)
    assert _read(path).keys() == {"a", "b"}
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=f"is damaged: {said}; copy or download it again"):
        read_tensors(path)


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 16]}},
        {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]}},
        {"w": {"dtype": "F32", "shape": [2, -3], "data_offsets": [0, 24]}},
        {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [-24, 0]}},
        {"w": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 24]}},
        {"w": {"dtype": "F32", "shape": [2, 3]}},
        {"w": {"dtype": "F32", "shape": "23", "data_offsets": [0, 24]}},
        {"w": 3},
        [],
    ],
)
def test_a_safetensors_header_that_lies_is_refused(tmp_path: Path, header: Any) -> None:
    """A tensor must have the size of its shape, within the file."""
    path = tmp_path / "model.safetensors"

    def write(held: Any, length: int | None = None) -> None:
        text = json.dumps(held).encode()
        path.write_bytes(
            struct.pack("<Q", len(text) if length is None else length) + text + bytes(24)
        )

    write({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {}})
    assert _read(path)["w"].shape == (2, 3)
    write(header)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged: .*copy or download"):
        read_tensors(path)
    write({}, length=2**63)
    with pytest.raises(UserError, match="no header of safetensors"):
        read_tensors(path)
