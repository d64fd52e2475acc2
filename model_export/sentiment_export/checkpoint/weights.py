"""Matches the tensors of weight files to the weights of a model.

Checkpoints on the hub spell the same weights in several ways: TensorFlow's ``gamma`` and
``beta``, prefixes added by a trainer, and extra entries that no classifier reads. A weight that
does not match is an error with its name, both shapes and the likely cause. It is never replaced
by random numbers.
"""

import mmap
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentiment_service.errors import UserError

from sentiment_export.checkpoint.family import Shape
from sentiment_export.checkpoint.tensor_files import Tensor

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
