"""Every architecture of the table, as a tiny checkpoint with the files of a public one."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from sentiment_export.checkpoint.architectures import ARCHITECTURES, REFUSED
from sentiment_export.checkpoint.checkpoint import Described, load_checkpoint
from sentiment_export.checkpoint.describe import describe, passes
from sentiment_export.checkpoint.family import FAMILY
from sentiment_export.export import export
from sentiment_service.errors import UserError

from tests.support.checkpoints import assert_like_transformers, make_checkpoint
from tests.support.model_export.published import PUBLISHED, make_published
from tests.support.tiny_bundle import load

EXAMPLES = [known.example for known in ARCHITECTURES.values()]
DOCUMENT = Path(__file__).parents[3] / "docs/architectures.md"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes the tiny form of a public checkpoint, once for all tests, which only read it."""
    base = tmp_path_factory.mktemp("published")
    return cache(lambda name: make_published(base / name.replace("/", "--"), name))


def test_the_documentation_has_the_table() -> None:
    """docs/architectures.md lists what is exported, with its files and passes, and what is not."""
    rows = [
        f"| {known.name} | `{model_type}` | `{known.example}` | "
        f"{'<br>'.join(', '.join(f'`{n}`' for n in t.names) for t in known.tokenizers) or '—'} | "
        f"{'the last layer' if model_type in FAMILY else 'what follows the last attention'} |"
        for model_type, known in ARCHITECTURES.items()
    ]
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.count("|") == 6][2:] == rows
    assert [line for line in lines if line.count("|") == 3][2:] == [
        f"| {why} | {', '.join(f'`{name}`' for name in names.split())} |"
        for why, names in REFUSED.items()
    ]
    assert all(f"`{name}`" in DOCUMENT.read_text() for name in PUBLISHED)


def test_each_architecture_has_the_example_that_it_names() -> None:
    """The tests below build every example of the table, of the right architecture."""
    examples = {known.example: model_type for model_type, known in ARCHITECTURES.items()}
    built = {name: layout.model_type for name, layout in PUBLISHED.items()}
    assert examples.items() <= built.items()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_description_says_what_the_export_will_do(
    published: Callable[[str], Path], name: str
) -> None:
    """It names the tokenizer's kind and files, the length, and what happens to the graph."""
    layout = PUBLISHED[name]
    known = ARCHITECTURES[layout.model_type]
    path = published(name)
    told = describe(path)
    assert told.problems == []
    assert told.changes[0] == f"the graph: {passes(layout.model_type)}"
    assert told.max_tokens == load_checkpoint(path).max_tokens
    used = told.files.keys() - {"config.json", "model.safetensors", "pytorch_model.bin"}
    assert told.files == {file.name: file.stat().st_size for file in path.iterdir()}
    made = [change for change in told.changes if change.startswith("tokenizer.json is made from")]
    source = known.tokenizer_files(used)
    if "tokenizer.json" in used:
        assert made == []
    else:
        assert source is not None
        assert made == [f"tokenizer.json is made from {' and '.join(source.names)}"]
        assert told.tokenizer == source.kind


@pytest.mark.parametrize("name", EXAMPLES)
def test_weights_that_do_not_fit_are_named(published: Callable[[str], Path], name: str) -> None:
    """A weight too many, one too few and a table of another size are found in every naming."""
    checkpoint = load_checkpoint(published(name))
    model = Described.of(checkpoint.path, checkpoint.config, len(checkpoint.labels))
    expected = {
        name: checkpoint.weights.tensors[key] for name, key in checkpoint.weights.names.items()
    }
    layer = next(key for key in expected if ".0." in key and "layer" in key)
    table = model.word_embedding
    for found, says in (
        (
            expected | {layer.replace(".0.", ".9."): expected[layer]},
            r"holds .*\.9\..*number of layers",
        ),
        ({key: expected[key] for key in expected if key != layer}, "lacks .*cut short"),
        (
            expected | {table: expected[table]._replace(shape=(9, 48))},
            r"is \[9, .*probably from another checkpoint",
        ),
    ):
        with pytest.raises(UserError, match=says):
            model.fit(found, "it")


def test_bertweets_tokenizer_is_not_taken_for_wordpiece(tmp_path: Path) -> None:
    """Its vocab.txt belongs to bpe.codes; without them, a RoBERTa has no tokenizer."""
    path = make_checkpoint(tmp_path / "made", "roberta")
    for name in ("vocab.json", "merges.txt"):
        (path / name).unlink()
    (path / "vocab.txt").write_text("hello 9\n")
    assert describe(path).tokenizer is None
    (path / "bpe.codes").write_text("h e 9\n")
    assert describe(path).tokenizer == "byte pair encoding (fastBPE)"


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in EXAMPLES])
def test_the_service_answers_like_transformers(
    tmp_path: Path, published: Callable[[str], Path], name: str
) -> None:
    """The bundle's ids and fp32 logits are those of the checkpoint, alone and in one batch.

    graph/test_graphs_of_architectures.py proves it of the table's examples.
    """
    checkpoint = load_checkpoint(published(name))
    export(checkpoint, tmp_path / "bundle", precisions=["fp32"])
    assert_like_transformers(load(tmp_path / "bundle"), checkpoint.path)
