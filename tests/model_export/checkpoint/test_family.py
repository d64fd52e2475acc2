"""The table of BERT's family: what each architecture calls its weights, and what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
from sentiment_export.checkpoint.architectures import NotRecognised
from sentiment_export.checkpoint.family import FAMILY, Encoder, is_known_unused
from sentiment_export.checkpoint.weights import check_fit, fit
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
    read = {n: s for n, s in shapes.items() if n in encoder.weights or not is_known_unused(n)}
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
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps in config.json is '1e-12'; .* a number"),
        ({"pad_token_id": -1}, "pad_token_id in config.json is -1; .* from 0"),
    ],
)
def test_a_bad_entry_is_named(entries: dict[str, Any], says: str) -> None:
    """One line that says what is accepted."""
    with pytest.raises(UserError, match=says):
        Encoder.of({"model_type": "bert", **entries}, labels=3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("classifier.bias", None), "it lacks classifier.bias"),
        (("classifier.bias", (4,)), r"classifier.bias is \[4\] in f, but .* for \[3\]"),
        (
            ("bert.encoder.layer.12.output.dense.bias", (768,)),
            "dense.bias, which the model",
        ),
        (("bert.encoder.layer.0.attention.self.rotary.weight", (9,)), "rotary.weight, which"),
        (("classifier.scale", (3,)), "classifier.scale, which is not a weight of the classifier"),
        (
            ("bert.embeddings.extra_embeddings.weight", (2, 768)),
            "extra_embeddings.weight, which",
        ),
    ],
)
def test_a_weight_that_does_not_belong_is_named(
    change: tuple[str, tuple[int, ...] | None], says: str
) -> None:
    """Missing, of another shape, or of a layer that the table does not have."""
    encoder = Encoder.of({"model_type": "bert"}, labels=3)
    shapes = dict(encoder.weights)
    name, shape = change
    if shape is None:
        del shapes[name]
    else:
        shapes[name] = shape
    tensors: Any = {n: SimpleNamespace(shape=s, dtype="float32") for n, s in shapes.items()}
    fitted = fit(encoder.weights, encoder.family.prefix, tensors)
    with pytest.raises(UserError, match=says):
        check_fit(fitted, encoder.weights, tensors, "f", is_known_unused)


@pytest.mark.parametrize(
    "name",
    [
        "roberta.embeddings.position_ids",
        "roberta.pooler.dense.weight",
        "lm_head.layer_norm.bias",
        "cls.predictions.transform.dense.weight",
        "vocab_projector.bias",
        "discriminator_predictions.dense.weight",
        "loss_fct.weight",
    ],
)
def test_what_no_classifier_reads_is_known(name: str) -> None:
    """Buffers, poolers, heads of pre-training and the weights of a loss."""
    assert is_known_unused(name)


@pytest.mark.parametrize("name", ["roberta.poolers.weight", "my_lm_head.bias", "bert.clss.weight"])
def test_what_only_looks_like_it_is_not(name: str) -> None:
    """A name is known by whole parts."""
    assert not is_known_unused(name)
