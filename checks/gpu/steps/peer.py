"""A peer: the same layers in PyTorch, with its attention (SDPA), and the fastest product."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from benchmarks.tables import Row
from checks.gpu.setup import Setup
from checks.gpu.steps.speed import operations, timed

SQUARE = 8_192  # width of the product


def run(setup: Setup) -> Iterator[Row]:
    """Measure texts of equal lengths, which need no padding, in half precision."""
    if setup.device == "cuda" and not torch.cuda.is_available():
        yield {"PyTorch": torch.__version__, "says": "it has no CUDA here"}
        return
    device, size = setup.device, setup.size
    side = SQUARE if device == "cuda" else 64
    matrix = torch.randn(side, side, dtype=torch.half, device=device)
    took = timed(_ended(partial(torch.mm, matrix, matrix), device), size.cell_seconds)
    yield {"PyTorch": torch.__version__, "what": "product", "TFLOP/s": 2 * side**3 / took / 1e12}
    config = size.config
    width, heads = config.get("hidden_size", 768), config.get("num_attention_heads", 12)
    inner, count = config.get("intermediate_size", 3072), config.get("num_hidden_layers", 12)
    layers = nn.Sequential(*(_Layer(width, heads, inner) for _ in range(count)))
    layers = layers.to(device, torch.half).eval()
    for tokens in size.tokens:
        for texts in size.batches:
            if tokens * texts > size.batch_tokens:
                break
            states = torch.randn(texts, tokens, width, dtype=torch.half, device=device)
            with torch.inference_mode():
                took = timed(_ended(partial(layers, states), device), size.cell_seconds)
            work = texts * operations(setup.bundle, tokens)
            yield {
                "what": f"{size.name}, layers",
                "tokens": tokens,
                "texts": texts,
                "ms": took * 1000,
                "texts/s": texts / took,
                "TFLOP/s": work / took / 1e12,
            }


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self._heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, inner), nn.Linear(inner, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(states).unflatten(-1, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*parts)
        states = self.first(states + self.out(attended.transpose(1, 2).flatten(2)))
        found: torch.Tensor = self.second(
            states + self.outer(nn.functional.gelu(self.inner(states)))
        )
        return found


def _ended(call: Callable[[], object], device: str) -> Callable[[], object]:
    """The call, and a wait for its end."""

    def run() -> None:
        call()
        if device == "cuda":
            torch.cuda.synchronize()

    return run
