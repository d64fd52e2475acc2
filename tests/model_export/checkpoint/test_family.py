"""The table of BERT's family: what each architecture calls its weights, and what is refused."""

from typing import Any

import pytest
from sentiment_export.checkpoint.architectures import NotRecognised
from sentiment_export.checkpoint.config import model_config
from sentiment_export.checkpoint.family import FAMILY, KNOWN_UNUSED, Encoder
from sentiment_service.errors import UserError

from tests.support.checkpoints import random_model

ALBERTS = {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}
CONFIGS: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in FAMILY),
    ("electra", {"embedding_size": 32}),
    ("albert", ALBERTS),
    ("bert", {"type_vocab_size": 1}),
]


@pytest.mark.parametrize(("kind", "config"), CONFIGS)
def test_names_and_shapes_are_those_of_transformers(kind: str, config: dict[str, Any]) -> None:
    """The weights of its model are those of the table, besides what is known as unused."""
    model = random_model(kind, 300, **config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    encoder = Encoder.of(model.config.to_dict(), labels=3)
    read = {
        n: s for n, s in shapes.items() if n in encoder.weights or not KNOWN_UNUSED.fullmatch(n)
    }
    assert encoder.weights == read


@pytest.mark.parametrize("kind", FAMILY)
def test_what_config_json_leaves_out_is_what_transformers_assumes(kind: str) -> None:
    """A config.json with nothing but the type gives the weights of transformers' default."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    with torch.device("meta"):
        config = AutoConfig.for_model(kind)
        model = AutoModelForSequenceClassification.from_config(config)
    whole, bare = (
        Encoder.of(entries, labels=2) for entries in (config.to_dict(), {"model_type": kind})
    )
    assert whole == bare
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert bare.weights.items() <= shapes.items()


def test_what_distilberts_config_calls_otherwise_is_read_as_transformers_does() -> None:
    """BERT's names for its width, depth and heads are known, those of the layer between ignored."""
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3}
    said = {**sizes, "intermediate_size": 96, "hidden_act": "relu"}
    entries = {"model_type": "distilbert", **said}
    expected = Encoder.of(model_config(entries).to_dict(), labels=2)
    assert Encoder.of(entries, labels=2) == expected
    assert (expected.hidden_size, expected.activation) == (48, "gelu")


def test_alberts_layers_share_their_weights_by_group() -> None:
    """Four layers of two groups with two inner layers: each group is computed whole."""
    config = {"model_type": "albert", **ALBERTS}
    layers = Encoder.of(config, labels=2).layers
    numbers = [
        (int(group), int(inner)) for _, _, _, group, _, inner in (x.split(".") for x in layers)
    ]
    assert numbers == [(0, 0), (0, 1)] * 2 + [(1, 0), (1, 1)] * 2


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"model_type": "deberta"}, "deberta is not one of bert, roberta"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type .* 'relative_key'"),
        ({"hidden_act": "xielu"}, "xielu is not one of gelu"),
    ],
)
def test_what_computes_otherwise_is_not_of_the_family(entries: dict[str, Any], says: str) -> None:
    """PyTorch's exporter may know it."""
    with pytest.raises(NotRecognised, match=says):
        Encoder.of({"model_type": "bert", **entries}, labels=3)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"hidden_size": "768"}, "hidden_size in config.json is '768'; it must be a whole number"),
        ({"num_hidden_layers": -1}, "num_hidden_layers in config.json is -1; .* from 0"),
        ({"num_attention_heads": True}, "num_attention_heads in config.json is True"),
        ({"hidden_size": 770}, "hidden_size in config.json is 770, which must be a multiple of"),
        ({"pad_token_id": -1}, "pad_token_id in config.json is -1; .* from 0"),
    ],
)
def test_a_bad_entry_is_named(entries: dict[str, Any], says: str) -> None:
    """One line that says what is accepted."""
    with pytest.raises(UserError, match=says):
        Encoder.of({"model_type": "bert", **entries}, labels=3)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("roberta.embeddings.position_ids", True),
        ("roberta.pooler.dense.weight", True),
        ("lm_head.layer_norm.bias", True),
        ("cls.predictions.transform.dense.weight", True),
        ("vocab_projector.bias", True),
        ("discriminator_predictions.dense.weight", True),
        ("loss_fct.weight", True),
        ("roberta.poolers.weight", False),
        ("my_lm_head.bias", False),
        ("bert.clss.weight", False),
    ],
)
def test_what_no_classifier_reads_is_known(name: str, known: bool) -> None:
    """Buffers, poolers, heads of pre-training and weights of a loss, by whole parts of names."""
    assert bool(KNOWN_UNUSED.fullmatch(name)) == known
