"""Trains a classifier in PyTorch. Killed and started again, it gives the same weights."""

import hashlib
import json
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import torch
from sentiment_service.atomic_files import FileLock, full_disk_named, write_atomically
from sentiment_service.engine.model.bundle import sha256
from sentiment_service.errors import UserError
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import get_linear_schedule_with_warmup

from sentiment_export.quality.evaluation import batches

# This many shuffled batches are sorted by length together. Batches then need nearly no
# padding, and their order still changes in every epoch.
BATCHES_PER_BUCKET = 50
SAVE_EVERY_S = 300.0
WARMUP_SHARE = 0.06
IDENTITY = "training.json"  # among the saves: what they depend on
LOCK = "lock"  # which whoever trains holds
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Tokenised:
    """Texts as unpadded token ids, and what is learnt of each, in the same order.

    ``targets`` are label indices [texts], or the logits of a teacher [texts, labels].
    """

    ids: Sequence[Sequence[int]]
    targets: torch.Tensor
    pad_token_id: int


class Diverged(UserError):
    """No later step can be of use. The same training would come to the same step again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how fast is trained. ``steps`` may end within an epoch."""

    seed: int
    steps: int
    batch_size: int
    learning_rate: float
    dropout: bool = True


def train(
    model: Any,
    parameters: Sequence[dict[str, Any]],
    data: Tokenised,
    plan: Plan,
    loss_of: Loss,
    judge: Callable[[Any, str], dict[str, Any]],
    work: Path,
) -> tuple[list[dict[str, Any]], float]:
    """Train the groups of ``parameters``; what ``judge`` said after each epoch, and the seconds.

    The state is saved in ``work`` after each epoch and every few minutes; what is there is resumed.
    """
    saves = work / f"seed-{plan.seed}.pt"
    optimizer = torch.optim.AdamW(parameters, lr=plan.learning_rate, fused=True)
    warmup = round(plan.steps * WARMUP_SHARE)
    schedule = get_linear_schedule_with_warmup(optimizer, warmup, plan.steps)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    history: list[dict[str, Any]] = []
    done, seconds = 0, 0.0
    if saves.exists():
        state = torch.load(saves, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["rng"])
        history, done, seconds = state["history"], state["done"], state["seconds"]
        print(f"seed {plan.seed}: resuming after step {done} of {plan.steps}")
    started = saved = time.monotonic()
    started -= seconds

    def save() -> None:
        state = {name: part.state_dict() for name, part in parts.items()}
        state |= {"history": history, "done": done, "seconds": time.monotonic() - started}
        write_atomically(saves, partial(torch.save, state | {"rng": torch.get_rng_state()}))

    per_epoch = ceil(len(data.ids) / plan.batch_size)
    epochs = ceil(plan.steps / per_epoch)
    for epoch in range(len(history), epochs):
        model.train(plan.dropout)
        order, before = random.Random(f"{plan.seed}/{epoch}"), epoch * per_epoch
        every = bucketed_batches(data.ids, plan.batch_size, order)[: plan.steps - before]
        title = f"seed {plan.seed}, epoch {epoch + 1}"
        rest = every[done - before :]
        counted = {"initial": done - before, "total": len(every)}
        bar = tqdm(rest, f"{title}/{epochs}", unit="batch", mininterval=1, **counted)
        for rows in bar:
            inputs = collate(data, rows)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(**inputs).logits
            loss = loss_of(logits.float(), data.targets[list(rows)])
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if not torch.isfinite(loss.detach() + norm):
                raise Diverged(
                    f"seed {plan.seed}: the training diverged in step {done + 1} of {plan.steps}: "
                    "its loss or its gradient is not finite; give a --learning-rate below "
                    f"{plan.learning_rate:g}"
                )
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
            done += 1
            if time.monotonic() - saved >= SAVE_EVERY_S:
                save()
                saved = time.monotonic()
        history.append(judge(model, title))
        save()
    return history, time.monotonic() - started


def bucketed_batches(
    ids: Sequence[Sequence[int]], batch_size: int, order: random.Random
) -> list[Sequence[int]]:
    """Batches of row numbers whose texts have similar lengths, shuffled by ``order``."""
    rows = list(range(len(ids)))
    order.shuffle(rows)
    sorted_batches: list[Sequence[int]] = []
    for bucket in batches(rows, batch_size * BATCHES_PER_BUCKET):
        sorted_batches += batches(sorted(bucket, key=lambda row: len(ids[row])), batch_size)
    order.shuffle(sorted_batches)
    return sorted_batches


def collate(data: Tokenised, rows: Sequence[int]) -> dict[str, torch.Tensor]:
    """Padded ``input_ids`` and ``attention_mask`` [batch, longest]."""
    texts = [torch.tensor(data.ids[row]) for row in rows]
    ids = pad_sequence(texts, batch_first=True, padding_value=data.pad_token_id)
    mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask}


def decayed(model: Any) -> list[dict[str, Any]]:
    """All parameters, with weight decay for matrices only, not for biases and layer norms."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]


@contextmanager
def resumable(output: Path, identity: Mapping[str, Any]) -> Iterator[Path]:
    """The directory ``<output>.training``, in which an interrupted training is kept for the next.

    It is removed at the end, and after a training that has diverged, with all that it holds.
    """
    directory = output.with_name(output.name + ".training")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(directory / LOCK)
    except BlockingIOError:
        raise UserError(
            f"another process is training into {output}; wait for its end, or choose another "
            "--output"
        ) from None
    with closing(lock):
        _check_identity(directory, identity)
        try:
            with full_disk_named(directory):
                yield directory
        except Diverged:
            shutil.rmtree(directory)
            raise
        shutil.rmtree(directory)


def _check_identity(directory: Path, identity: Mapping[str, Any]) -> None:
    """Check that what is saved depends on the same; if nothing is, write down on what it will."""
    for half in directory.glob("*.tmp"):  # the training was killed while it saved
        half.unlink()
    path = directory / IDENTITY
    if {*directory.iterdir()} <= {path, directory / LOCK}:  # nothing is trained yet
        path.write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, value in identity.items():
        if saved.get(name) != value:
            raise UserError(
                f"{directory} holds an unfinished training, but {name} was "
                f"{saved.get(name, 'not recorded')} then and is {value} now; repeat the first "
                "command to resume it, or remove the directory to start anew"
            )


def digest(paths: Iterable[Path]) -> str:
    digests = " ".join(map(sha256, paths))
    return "sha256 " + hashlib.sha256(digests.encode()).hexdigest()[:16]
