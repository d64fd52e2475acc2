"""The operators of ONNX Runtime that the fp16 graph may use, each behind a name.

Our own passes make these fusions, because ONNX Runtime's optimizer (``onnxruntime.transformers``)
does not recognise our graphs: not DistilBERT's attention, not RoBERTa's embeddings, whose positions
are computed from the ids, and not the last layer once it is shortened (tried with 1.31.1). The
layers that the passes need are found already, for int8 and for graphs without padding.

A fusion that does not find its pattern leaves the graph as it is. What was done is in the manifest.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from app.errors import UserError
from model_export.graph.linear import NotRecognised
from model_export.graph.passes.bias_gelu import fuse_bias_gelu
from model_export.graph.passes.embedding_norm import fuse_embeddings
from model_export.graph.passes.fused_attention import fuse_attention
from model_export.graph.passes.half_layer_norm import remove_norm_casts
from model_export.graph.passes.packed_attention import pack_attention
from model_export.graph.passes.skip_layer_norm import fuse_skip_layer_norm


@dataclass(frozen=True, slots=True)
class Fusion:
    """A pass over the graph, which raises NotRecognised if its pattern is not there."""

    done: str  # as manifest and model card say it
    apply: Callable[[ir.Model], None]
    precision: Literal["fp32", "fp16"] = "fp32"  # of the graph that the pass works on


# In the order in which they are applied. The attentions come first, because they look for layers
# that nothing else has changed. Where texts are packed, no attention is left for the second one.
FUSIONS: dict[str, Fusion] = {
    "packed-attention": Fusion("padding left out, attention packed", pack_attention),
    "attention": Fusion("attention fused", fuse_attention),
    "skip-layer-norm": Fusion("residuals and layer norms fused", fuse_skip_layer_norm),
    "bias-gelu": Fusion("biases and GELUs fused", fuse_bias_gelu),
    "embeddings": Fusion("embeddings fused", fuse_embeddings),
    "half-layer-norm": Fusion("layer norms without Casts", remove_norm_casts, "fp16"),
}
# None of them has been measured on a GPU, so the fp16 graph has none of them.
DEFAULT_FUSIONS: tuple[str, ...] = ()


def check_names(names: Collection[str]) -> None:
    """Check the names of fusions.

    Raises:
        UserError: there is no fusion of that name.
    """
    for name in names:
        if name not in FUSIONS:
            raise UserError(f"no fusion is called {name!r}; there are {', '.join(FUSIONS)}")


def fuse(
    model: ir.Model, names: Collection[str], precision: Literal["fp32", "fp16"]
) -> tuple[ir.Model, list[str]]:
    """Apply those of the fusions that work on a graph of this precision; ``model`` is kept.

    Returns:
        The fused graph, and what was done.
    """
    done = []
    for name, fusion in FUSIONS.items():
        if name in names and fusion.precision == precision:
            fused = model.clone()
            try:
                fusion.apply(fused)
            except NotRecognised:
                continue
            model = fused
            done.append(fusion.done)
    return model, done
