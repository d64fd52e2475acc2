"""BERT's family as a table: what each architecture calls its weights, and what config.json says.

``Encoder.weights`` has every weight that the graph reads, with its shape. ``KNOWN_UNUSED`` names
what else lies in files: buffers, poolers and the heads of pre-training. ``check_fit`` of
``weights.py`` refuses whatever is neither, so a wrong name never passes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sentiment_service.errors import UserError

from sentiment_export.checkpoint.architectures import NotRecognised

Shape = tuple[int, ...]
# What an encoder's config can name; ``graph/builder.py`` writes each.
ACTIVATIONS = (
    *("gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh", "gelu_accurate", "gelu_fast"),
    *("quick_gelu", "silu", "swish", "relu", "relu2", "tanh", "sigmoid", "mish"),
)


@dataclass(frozen=True, slots=True)
class LayerNames:
    """The modules of one encoder layer, below the layer's own name. The defaults are BERT's."""

    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    intermediate: str = "intermediate.dense"
    activation: str = "intermediate.intermediate_act_fn"
    output: str = "output.dense"
    output_norm: str = "output.LayerNorm"


DISTILBERTS_LAYER = LayerNames(
    "attention.q_lin",
    "attention.k_lin",
    "attention.v_lin",
    "attention.out_lin",
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.activation",
    "ffn.lin2",
    "output_layer_norm",
)
ALBERTS_LAYER = LayerNames(
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.dense",
    "attention.LayerNorm",
    "ffn",
    "activation",
    "ffn_output",
    "full_layer_layer_norm",
)


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """A linear layer between the first token's hidden state and the logits."""

    module: str
    activation: str  # one of ``ACTIVATIONS``, or ``OF_CONFIG``
    place: str = ""  # the activation's module in PyTorch


BERTS_HEAD = (HeadLayer("bert.pooler.dense", "tanh", "bert.pooler.activation"),)
OF_CONFIG = "hidden_act"  # an activation that config.json names


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture of BERT's family.

    ``types`` says which token types a text has: those of an input of the graph, always the first,
    or none. ``names`` are config.json's names for what BERT's config calls otherwise, ``ignored``
    BERT's names that transformers does not take for them, and ``defaults`` what it assumes where
    config.json says nothing.
    """

    prefix: str
    head: tuple[HeadLayer, ...]
    logits: str
    layer: LayerNames = LayerNames()
    layers: str = "encoder.layer"
    types: Literal["input", "first", "none"] = "first"
    after_padding: bool = False  # positions count from the padding id + 1
    projection: str = ""  # widens embeddings of another width
    names: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _roberta(prefix: str, vocabulary: int = 30522) -> Family:
    return Family(
        prefix,
        (HeadLayer("classifier.dense", "tanh", "classifier"),),
        "classifier.out_proj",
        after_padding=True,
        defaults={"vocab_size": vocabulary, "pad_token_id": 1},
    )


DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
# By model_type in config.json.
FAMILY: Mapping[str, Family] = {
    "bert": Family("bert", BERTS_HEAD, "classifier", types="input"),
    "roberta": _roberta("roberta", 50265),
    "xlm-roberta": _roberta("roberta"),
    "camembert": _roberta("roberta"),
    "data2vec-text": _roberta("data2vec_text"),
    "distilbert": Family(
        "distilbert",
        (HeadLayer("pre_classifier", "relu"),),
        "classifier",
        layer=DISTILBERTS_LAYER,
        layers="transformer.layer",
        types="none",
        names={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        ignored=("intermediate_size", "hidden_act"),
        defaults={"num_hidden_layers": 6},
    ),
    "electra": Family(
        "electra",
        (HeadLayer("classifier.dense", "gelu", "classifier.activation"),),
        "classifier.out_proj",
        types="input",
        projection="embeddings_project",
        defaults={
            "hidden_size": 256,
            "embedding_size": 128,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
        },
    ),
    "albert": Family(
        "albert",
        (HeadLayer("albert.pooler", "tanh", "albert.pooler_activation"),),
        "classifier",
        layer=ALBERTS_LAYER,
        layers="encoder.albert_layer_groups",
        types="input",
        projection="encoder.embedding_hidden_mapping_in",
        defaults={
            "vocab_size": 30000,
            "hidden_size": 4096,
            "embedding_size": 128,
            "num_attention_heads": 64,
            "intermediate_size": 16384,
            "num_hidden_groups": 1,
            "inner_group_num": 1,
            "hidden_act": "gelu_new",
        },
    ),
    "big_bird": Family(
        "bert",
        (HeadLayer("classifier.dense", OF_CONFIG, "classifier"),),
        "classifier.out_proj",
        defaults={
            "vocab_size": 50358,
            "max_position_embeddings": 4096,
            "hidden_act": "gelu_new",
            "rescale_embeddings": False,
            "use_bias": True,
        },
    ),
}
# What other graphs have than those of the table.
_OTHERWISE = {"position_embedding_type": "absolute", "rescale_embeddings": False, "use_bias": True}
# What files hold besides a classifier: buffers, a pooler that the head does not read, the heads of
# pre-training and of other tasks, and the weights of a loss.
KNOWN_UNUSED = re.compile(
    r"(.*\.)?(position_ids|token_type_ids|pooler(_activation)?|lm_head|cls|predictions|"
    r"sop_classifier|discriminator_predictions|generator_predictions|generator_lm_head|qa_outputs|"
    r"vocab_transform|vocab_layer_norm|vocab_projector|loss(_fct|_fn)?|criterion)(\..*|)"
)


@dataclass(frozen=True, slots=True)
class Encoder:
    """A classifier of the family, with the numbers of its config.json."""

    family: Family
    labels: int
    vocabulary: int
    positions: int
    types: int  # rows of the table of token types
    embedding_size: int
    hidden_size: int
    heads: int
    intermediate_size: int
    padding_id: int
    epsilon: float
    activation: str
    layers: tuple[str, ...]  # the name of each layer, in the order of computation

    @classmethod
    def of(cls, config: Mapping[str, Any], labels: int) -> "Encoder":
        kind = config.get("model_type")
        family = FAMILY.get(str(kind))
        if family is None:
            raise NotRecognised(f"{kind} is not one of {', '.join(FAMILY)}")
        said = {n: v for n, v in config.items() if v is not None and n not in family.ignored}
        known = {**DEFAULTS, **family.defaults, **said}
        for name, usual in _OTHERWISE.items():
            if known.get(name, usual) != usual:
                raise NotRecognised(f"{name} in config.json is {known[name]!r}, not {usual!r}")

        activation = str(known.get(family.names.get("hidden_act", ""), known["hidden_act"]))
        if activation not in ACTIVATIONS:
            raise NotRecognised(f"{activation} is not one of {', '.join(ACTIVATIONS)}")

        def number(name: str, least: int = 1) -> int:
            spelled = family.names.get(name, name)
            value = known.get(spelled, known[name])
            if type(value) is not int or value < least:
                raise UserError(
                    f"{spelled} in config.json is {value!r}; it must be a whole number from {least}"
                )
            return value

        hidden, heads = number("hidden_size"), number("num_attention_heads")
        if hidden % heads:
            raise UserError(
                f"hidden_size in config.json is {hidden}, which must be a multiple of its "
                f"{heads} attention heads"
            )
        epsilon = 1e-12 if kind == "distilbert" else known["layer_norm_eps"]
        depth, layers = number("num_hidden_layers", 0), f"{family.prefix}.{family.layers}"
        if depth == 0:
            raise NotRecognised("num_hidden_layers in config.json is 0")
        places = [f"{layers}.{index}" for index in range(depth)]
        if kind == "albert":  # layers that follow each other share a group's weights
            groups, inner = number("num_hidden_groups"), number("inner_group_num")
            groups_of = [f"{layers}.{int(layer / (depth / groups))}" for layer in range(depth)]
            places = [f"{of}.albert_layers.{index}" for of in groups_of for index in range(inner)]
        return cls(
            family=family,
            labels=labels,
            vocabulary=number("vocab_size"),
            positions=number("max_position_embeddings"),
            types=number("type_vocab_size") if family.types != "none" else 0,
            embedding_size=number("embedding_size") if family.projection else hidden,
            hidden_size=hidden,
            heads=heads,
            intermediate_size=number("intermediate_size"),
            padding_id=number("pad_token_id", least=0),
            epsilon=float(epsilon),
            activation=activation,
            layers=tuple(places),
        )

    @property
    def width(self) -> int:
        """Of each head."""
        return self.hidden_size // self.heads

    @property
    def has_types(self) -> bool:
        """Whether token types are an input of the graph."""
        return self.family.types == "input" and self.types > 1

    @property
    def projection(self) -> str:
        """The module that widens the embeddings; empty if there is none."""
        same = self.embedding_size == self.hidden_size
        if not self.family.projection or (same and self.family.prefix == "electra"):
            return ""
        return f"{self.family.prefix}.{self.family.projection}"

    @property
    def weights(self) -> dict[str, Shape]:
        """Every weight that the graph reads, by its name in PyTorch, with its shape."""
        shapes: dict[str, Shape] = {}

        def linear(module: str, inputs: int, outputs: int) -> None:
            shapes[f"{module}.weight"], shapes[f"{module}.bias"] = (outputs, inputs), (outputs,)

        def norm(module: str, size: int) -> None:
            shapes[f"{module}.weight"] = shapes[f"{module}.bias"] = (size,)

        embeddings = f"{self.family.prefix}.embeddings"
        width, hidden = self.embedding_size, self.hidden_size
        rows = {"word": self.vocabulary, "position": self.positions, "token_type": self.types}
        for table, count in rows.items():
            if count:
                shapes[f"{embeddings}.{table}_embeddings.weight"] = (count, width)
        norm(f"{embeddings}.LayerNorm", width)
        if self.projection:
            linear(self.projection, width, hidden)
        names = self.family.layer
        for place in dict.fromkeys(self.layers):
            for module in (names.query, names.key, names.value, names.attention_output):
                linear(f"{place}.{module}", hidden, hidden)
            norm(f"{place}.{names.attention_norm}", hidden)
            linear(f"{place}.{names.intermediate}", hidden, self.intermediate_size)
            linear(f"{place}.{names.output}", self.intermediate_size, hidden)
            norm(f"{place}.{names.output_norm}", hidden)
        for layer in self.family.head:
            linear(layer.module, hidden, hidden)
        linear(self.family.logits, hidden, self.labels)
        return shapes
