"""Each part of the exported fp32 graph computes the same as its formula in numpy."""

import math
from typing import cast

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file

from model_export.graph.encoder_layers import find_layers
from model_export.output import ONNX_FILES
from tests.support.checkpoints import ARCHITECTURES, HEADS, HIDDEN_SIZE, LAYERS, Exported, exported
from tests.support.graphs import name_of, session

COUNT_FROM_PADDING = ("roberta", "xlm-roberta")
SHORT, LONG = [5, 17, 9, 6], [5, 30, 41, 17, 8, 22, 6]
# DistilBERT's names, as the others have them.
RENAMED = {
    "transformer.layer.": "encoder.layer.",
    "attention.q_lin": "attention.self.query",
    "attention.k_lin": "attention.self.key",
    "attention.v_lin": "attention.self.value",
    "attention.out_lin": "attention.output.dense",
    "sa_layer_norm": "attention.output.LayerNorm",
    "ffn.lin1": "intermediate.dense",
    "ffn.lin2": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}


class Parts:
    """The served fp32 graph, which can be asked for any part, and the checkpoint's weights."""

    def __init__(self, architecture: str, made: Exported) -> None:
        self.architecture = architecture
        self.pad = 1 if architecture in COUNT_FROM_PADDING else 0
        self.weights = {
            self._common(name): array
            for name, array in load_file(made.source / "model.safetensors").items()
        }
        model = ir.load(made.bundle / ONNX_FILES["fp32"])
        self.values = {"logits": "logits"}
        for number, layer in enumerate(find_layers(model.graph)):
            parts = {
                "hidden": layer.hidden,
                "context": layer.attention_output.input,
                "attended": layer.attention_norm.outputs[0],
                "widened": layer.output.input,
                "output": layer.output_norm.outputs[0],
            }
            self.values |= {f"{number}.{part}": name_of(value) for part, value in parts.items()}
            model.graph.outputs.extend(v for v in parts.values() if not v.is_graph_output())
        self._session = session(model, optimised=False)

    @staticmethod
    def _common(name: str) -> str:
        for prefix in ("roberta.", "bert.", "distilbert."):
            name = name.removeprefix(prefix)
        for its_name, common in RENAMED.items():
            name = name.replace(its_name, common)
        return name

    def run(self, part: str, *texts: list[int], length: int | None = None) -> list[np.ndarray]:
        """One part's output for each text of a batch, padded to the longest or to a length.

        An output has a row a token, or a single one from the last layer's attention on.
        """
        longest = length or max(map(len, texts))
        ids = [[*text, *[self.pad] * (longest - len(text))] for text in texts]
        mask = [[1] * len(text) + [0] * (longest - len(text)) for text in texts]
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        wanted = {n.name: np.array(feeds[n.name], np.int64) for n in self._session.get_inputs()}
        rows = np.asarray(self._session.run([self.values[part]], wanted)[0])
        if len(rows) == len(texts):
            return list(rows[:, np.newaxis])
        assert len(rows) == sum(map(len, texts)), "rows of padding"
        return np.split(rows, np.cumsum([len(text) for text in texts])[:-1])

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        """The weight's rows are the outputs."""
        product: np.ndarray = x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return product

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """Mean 0 and variance 1, then weight and bias."""
        centred = x - x.mean(-1, keepdims=True)
        unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        norm: np.ndarray = unit * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return norm

    def embedded(self, ids: list[int], positions: list[int]) -> np.ndarray:
        """LayerNorm(word + position + type 0); DistilBERT has no types."""
        word, position, types = (
            self.weights.get(f"embeddings.{table}_embeddings.weight", np.zeros((1, HIDDEN_SIZE)))
            for table in ("word", "position", "token_type")
        )
        total = word[ids] + position[positions] + types[0]
        return self.norm(total, "embeddings.LayerNorm")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """One of the architectures."""
    return Parts(request.param, exported(tmp_path_factory.getbasetemp(), request.param))


def close(found: np.ndarray, expected: np.ndarray) -> None:
    """The same but for the order of float32 sums."""
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)


def test_embeddings(parts: Parts) -> None:
    """Word, position and type; RoBERTa's positions begin at padding id + 1, BERT's at 0."""
    first = parts.pad + 1 if parts.architecture in COUNT_FROM_PADDING else 0
    positions = list(range(first, first + len(LONG)))
    close(parts.run("0.hidden", LONG)[0], parts.embedded(LONG, positions))


def test_positions_of_pads(parts: Parts) -> None:
    """RoBERTa skips a pad, in the middle too, which keeps the padding id; BERT counts it."""
    ids = [5, 17, parts.pad, 9, parts.pad, parts.pad, 6]
    count = parts.architecture in COUNT_FROM_PADDING
    positions = [2, 3, 1, 4, 1, 1, 5] if count else [0, 1, 2, 3, 4, 5, 6]
    close(parts.run("0.hidden", ids)[0], parts.embedded(ids, positions))


def test_padding_is_not_computed(parts: Parts) -> None:
    """However long the batch, each layer's input has the text's own rows and no others."""
    expected = parts.run("0.hidden", SHORT)[0]
    close(parts.run("0.hidden", SHORT, length=len(SHORT) + 20)[0], expected)


def _attention(parts: Parts, x: np.ndarray, keys: int, name: str) -> np.ndarray:
    """softmax(QKᵀ/√d + mask) V for one text, of whose tokens the first ``keys`` are seen."""
    width = HIDDEN_SIZE // HEADS
    query, key, value = (
        parts.linear(x, f"{name}.attention.self.{part}").reshape(-1, HEADS, width).swapaxes(0, 1)
        for part in ("query", "key", "value")
    )
    scores = query @ key.swapaxes(1, 2) / math.sqrt(width)
    scores[:, :, keys:] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return cast(np.ndarray, (shares @ value).swapaxes(0, 1).reshape(-1, HIDDEN_SIZE))


@pytest.mark.parametrize("number", range(LAYERS))
def test_attention(parts: Parts, number: int) -> None:
    """Scaled, by heads, blind to padding; the last layer attends for its first token only."""
    hidden = parts.run(f"{number}.hidden", SHORT, LONG)
    found = parts.run(f"{number}.context", SHORT, LONG)
    rows = 1 if number == LAYERS - 1 else len(LONG)
    for text, ids in enumerate((SHORT, LONG)):
        expected = _attention(parts, hidden[text], len(ids), f"encoder.layer.{number}")
        close(found[text], expected[:rows])


@pytest.mark.parametrize("number", range(LAYERS))
def test_attention_output(parts: Parts, number: int) -> None:
    """LayerNorm(dense(context) + hidden)."""
    name = f"encoder.layer.{number}.attention.output"
    (context,) = parts.run(f"{number}.context", LONG)
    residual = parts.run(f"{number}.hidden", LONG)[0][: len(context)]
    expected = parts.norm(parts.linear(context, f"{name}.dense") + residual, f"{name}.LayerNorm")
    close(parts.run(f"{number}.attended", LONG)[0], expected)


@pytest.mark.parametrize("number", range(LAYERS))
def test_intermediate(parts: Parts, number: int) -> None:
    """x Φ(x) by the error function, not by tanh's approximation, which is off by 5e-4."""
    x = parts.linear(
        parts.run(f"{number}.attended", LONG)[0], f"encoder.layer.{number}.intermediate.dense"
    )
    erf = np.vectorize(math.erf)(x / math.sqrt(2))
    close(parts.run(f"{number}.widened", LONG)[0], x * 0.5 * (1 + erf))


@pytest.mark.parametrize("number", range(LAYERS))
def test_output(parts: Parts, number: int) -> None:
    """LayerNorm(dense(widened) + attended)."""
    name = f"encoder.layer.{number}.output"
    dense = parts.linear(parts.run(f"{number}.widened", LONG)[0], f"{name}.dense")
    expected = parts.norm(dense + parts.run(f"{number}.attended", LONG)[0], f"{name}.LayerNorm")
    close(parts.run(f"{number}.output", LONG)[0], expected)


def test_classifier(parts: Parts) -> None:
    """On the first token: dense, tanh (DistilBERT: ReLU), dense, by each one's names."""
    first = np.concatenate(parts.run(f"{LAYERS - 1}.output", SHORT, LONG))
    dense, head = {
        "bert": ("pooler.dense", "classifier"),
        "distilbert": ("pre_classifier", "classifier"),
    }.get(parts.architecture, ("classifier.dense", "classifier.out_proj"))
    inner = parts.linear(first, dense)
    inner = np.maximum(inner, 0) if parts.architecture == "distilbert" else np.tanh(inner)
    close(np.concatenate(parts.run("logits", SHORT, LONG)), parts.linear(inner, head))


@pytest.mark.parametrize("part", ["hidden", "context", "attended", "widened", "output"])
def test_padded_rows_change_nothing(parts: Parts, part: str) -> None:
    """In the first layer a padded text's own rows are those that it has alone."""
    alone, padded = parts.run(f"0.{part}", SHORT), parts.run(f"0.{part}", SHORT, LONG)
    close(padded[0], alone[0])
