"""ONNX directories as sources: what is made of them, what stays as it is, and what is refused."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, version_converter
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.checkpoint.describe import describe
from sentiment_export.cli import main
from sentiment_export.export import export
from sentiment_service.engine.model.bundle import Bundle, Manifest, Precision
from sentiment_service.errors import UserError
from sentiment_service.settings.settings import CheckpointOptions

from tests.support.checkpoints import CORPUS, LAYERS, MAX_TOKENS, Exported, configure
from tests.support.model_export.plain_graph import (
    halve,
    make_repository,
    plain_bert,
    quantize,
    save,
    weights_outside,
)
from tests.support.tiny_bundle import load

GRAPH = "onnx/model.onnx"


@pytest.fixture(scope="module")
def repository(bert: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of ONNX's layout; the tests copy it."""
    return make_repository(tmp_path_factory.mktemp("onnx") / "tiny", bert.source, GRAPH)


@pytest.fixture
def source(repository: Path, tmp_path: Path) -> Path:
    """One of its own for a test that changes it."""
    return shutil.copytree(repository, tmp_path / "source")


def _export(source: Path, output: Path, onnx: str = "", **options: Any) -> Manifest:
    checkpoint = load_checkpoint(source, CheckpointOptions(onnx=onnx))
    return export(checkpoint, output, **options)


def _logits(bundle: Path, precision: Any) -> np.ndarray:
    model = load(bundle, precision)
    rows: list[Any] = [*model.infer([model.tokenizer.encode(text) for text in CORPUS])]
    return np.stack(rows)


@pytest.mark.parametrize("name", ["model.onnx", GRAPH], ids=["Optimum", "onnx-community"])
def test_an_fp32_graph_gives_the_answers_of_its_checkpoint(
    bert: Exported, tmp_path: Path, name: str
) -> None:
    """In both layouts, fp32 and int8 agree with the bundle of the checkpoint, padding left out.

    The reference is the source's own graph, and no PyTorch made anything.
    """
    source = make_repository(tmp_path / "source", bert.source, name)
    manifest = _export(source, tmp_path / "bundle")
    assert (manifest.reference, [*manifest.variants]) == ("onnx", ["fp32", "int8"])
    assert not {"torch", "transformers", "optimum-onnx"} & manifest.created_with.keys()
    assert set(manifest.source.files) >= {name, "config.json", "vocab.txt"}
    tolerances: dict[Precision, float] = {"fp32": 1e-4, "int8": 0.5}
    for precision, tolerance in tolerances.items():
        variant = manifest.variants[precision]
        assert variant.parity is not None
        assert variant.parity.max_abs_logit_diff < tolerance
        assert "padding left out" in variant.passes
        assert variant.batch_invariant is True
        found = _logits(tmp_path / "bundle", precision)
        np.testing.assert_allclose(found, _logits(bert.bundle, "fp32"), atol=tolerance)
        assert load(tmp_path / "bundle", precision).batch_invariant is True
    card = (tmp_path / "bundle/README.md").read_text()
    assert "Parity with the source's graph" in card


@pytest.mark.parametrize("opset", [13, 17])
def test_older_opsets_get_the_passes(bert: Exported, tmp_path: Path, opset: int) -> None:
    """They need opset 18; a graph of an earlier one is converted."""
    source = make_repository(tmp_path / "source", bert.source)
    save(plain_bert(bert.source, opset), source / "model.onnx")
    manifest = _export(source, tmp_path / "bundle")
    assert "int8 with a scale per token" in manifest.variants["int8"].passes


def test_a_graph_may_have_one_token_type(bert: Exported, tmp_path: Path) -> None:
    """As those of RoBERTa have; the text that tries the graph is of the first one."""
    source = make_repository(tmp_path / "source", bert.source)
    model = plain_bert(bert.source, 17)
    for tensor in model.graph.initializer:
        if "token_type" in tensor.name:
            first = numpy_helper.to_array(tensor)[:1]
            tensor.CopyFrom(numpy_helper.from_array(first, tensor.name))
            break
    else:
        pytest.fail("no token types are looked up")
    save(model, source / "model.onnx")
    assert [*_export(source, tmp_path / "bundle").variants] == ["fp32", "int8"]


def test_a_quantized_graph_stays_as_it_is(
    bert: Exported, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the int8 variant, its only one, whatever is asked for; batches change its logits."""
    quantize(source / GRAPH, source / "onnx/model_quantized.onnx")
    manifest = _export(source, tmp_path / "bundle", "onnx/model_quantized.onnx")
    assert [*manifest.variants] == ["int8"]
    assert manifest.variants["int8"].passes == ["as it is in model_quantized.onnx"]
    assert "model_quantized.onnx: it is in int8 already" in capsys.readouterr().out
    assert manifest.variants["int8"].batch_invariant is False
    assert load(tmp_path / "bundle", "auto").batch_invariant is None
    assert "can change with the other texts" in (tmp_path / "bundle/README.md").read_text()
    held = _logits(bert.bundle, "fp32")
    np.testing.assert_allclose(_logits(tmp_path / "bundle", "int8"), held, atol=0.5)


def test_weights_of_eight_bits_in_blocks_are_int8(
    bert: Exported, source: Path, tmp_path: Path
) -> None:
    """The operator is the one for four bits, for which there is no variant; an attribute tells."""
    made = MatMulNBitsQuantizer(onnx.load_model(source / GRAPH), bits=8, block_size=16)
    made.process()
    save(made.model.model, source / GRAPH)
    manifest = _export(source, tmp_path / "bundle")
    assert [*manifest.variants] == ["int8"]
    held = _logits(bert.bundle, "fp32")
    np.testing.assert_allclose(_logits(tmp_path / "bundle", "int8"), held, atol=0.5)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
def test_functions_of_a_graph_are_its_operators(
    source: Path, tmp_path: Path, quantized: bool, older: bool
) -> None:
    """What they compute is quantized, or gets the passes, as if it stood in the graph.

    Those of an older opset than it get no passes.
    """
    if quantized:
        quantize(source / GRAPH, source / GRAPH)
    model = onnx.load_model(source / GRAPH)
    _in_functions(model, "DynamicQuantizeLinear", "MatMulInteger", "Erf")
    for function in model.functions:
        function.opset_import[0].version -= older
    save(model, source / GRAPH)
    manifest = _export(source, tmp_path / "bundle")
    plain = ["fp32"] if older else ["fp32", "int8"]
    assert [*manifest.variants] == (["int8"] if quantized else plain)


def _in_functions(model: ModelProto, *kinds: str) -> None:
    opsets = [*model.opset_import]
    for number, node in enumerate(model.graph.node):
        if node.op_type in kinds:
            body = type(node).FromString(node.SerializeToString())
            function = helper.make_function(
                "mine", f"function{number}", node.input, node.output, [body], opsets
            )
            model.functions.append(function)
            node.domain, node.op_type = "mine", function.name
            del node.attribute[:]
    model.opset_import.append(helper.make_opsetid("mine", 1))


def test_gelu_may_be_one_operator(source: Path, tmp_path: Path) -> None:
    """As PyTorch writes it from opset 20. It leaves padding out as its parts do, and its range is
    known to int8.
    """
    counts = []
    for name in ("parts", "one"):
        _export(source, tmp_path / name, precisions=["int8"])
        graph = onnx.load_model(Bundle.open(tmp_path / name).variant_path("int8")).graph
        counts.append(Counter(node.op_type for node in graph.node))
        model = version_converter.convert_version(onnx.load_model(source / GRAPH), 20)
        _with_gelu(model)
        save(model, source / GRAPH)
    parts, one = counts
    assert [(one[kind], parts[kind]) for kind in ("Gelu", "Erf")] == [(LAYERS, 0), (0, LAYERS)]
    assert [one[kind] for kind in ("Gather", "Abs")] == [parts[kind] for kind in ("Gather", "Abs")]


def _with_gelu(model: ModelProto) -> None:
    nodes = [*model.graph.node]
    for place in [place for place, node in enumerate(nodes) if node.op_type == "Erf"]:
        gelu = helper.make_node("Gelu", nodes[place - 1].input[:1], nodes[place + 3].output)
        model.graph.node.insert([*model.graph.node].index(nodes[place]), gelu)
        for part in nodes[place - 1 : place + 4]:
            model.graph.node.remove(part)


def test_a_graph_in_half_precision_stays_as_it_is(
    bert: Exported, source: Path, tmp_path: Path
) -> None:
    """It is the fp16 variant, and a CPU serves it without being told the precision.

    Whether batches change its logits, the few texts of an export do not show.
    """
    save(halve(onnx.load_model(source / GRAPH)), source / "onnx/model_fp16.onnx")
    manifest = _export(source, tmp_path / "bundle", "onnx/model_fp16.onnx")
    assert [*manifest.variants] == ["fp16"]
    assert manifest.variants["fp16"].batch_invariant is None
    assert load(tmp_path / "bundle", "auto").precision == "fp16"
    held = _logits(bert.bundle, "fp32")
    np.testing.assert_allclose(_logits(tmp_path / "bundle", "auto"), held, atol=0.05)


def test_a_graph_of_other_operators_stays_as_it_is(source: Path, tmp_path: Path) -> None:
    """The passes do not know ONNX Runtime's own operators, and leave the graph alone."""
    model = onnx.load_model(source / GRAPH)
    node = next(node for node in model.graph.node if node.op_type == "Erf")
    gelu = helper.make_node("Gelu", node.input, ["unread"], domain="com.microsoft")
    model.graph.node.insert([*model.graph.node].index(node), gelu)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    save(model, source / GRAPH)
    manifest = _export(source, tmp_path / "bundle")
    assert [*manifest.variants] == ["fp32"]
    assert manifest.variants["fp32"].passes == ["as it is in model.onnx"]


def test_a_graph_without_a_mask_stays_as_it_is(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it finds padding by the ids, it is served; the passes need the mask, which is said."""
    model = onnx.load_model(source / GRAPH)
    _without_mask(model)
    ids = helper.make_node("Sign", ["input_ids"], ["attention_mask"])  # [PAD] is 0
    model.graph.node[1].CopyFrom(ids)
    save(model, source / GRAPH)
    assert [*_export(source, tmp_path / "bundle").variants] == ["fp32"]
    assert "other variants need an attention_mask" in capsys.readouterr().out


def test_weights_in_another_file_are_read(source: Path, tmp_path: Path) -> None:
    """As large graphs have them: ``model.onnx_data`` beside the graph."""
    plain = _export(source, tmp_path / "plain")
    weights_outside(source / GRAPH)
    manifest = _export(source, tmp_path / "bundle")
    assert f"{GRAPH}_data" in manifest.source.files
    assert manifest.variants["int8"].sha256 == plain.variants["int8"].sha256


def test_weights_win_unless_a_graph_is_named(bert: Exported, source: Path, tmp_path: Path) -> None:
    """A repository with both is exported from its safetensors; ``--onnx`` takes the graph."""
    shutil.copyfile(bert.source / "model.safetensors", source / "model.safetensors")
    assert load_checkpoint(source).graph is None
    assert _export(source, tmp_path / "bundle", f"./{GRAPH}").reference == "onnx"


def test_of_several_graphs_one_must_be_named(
    source: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The fp32 one is taken by its name; where none has it, the error lists them all."""
    shutil.copyfile(source / GRAPH, source / "onnx/other.onnx")
    assert load_checkpoint(source, CheckpointOptions(onnx="")).graph is not None
    (source / GRAPH).rename(source / "onnx/another.onnx")
    words = [str(source), "--output", str(tmp_path / "bundle")]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert "choose one of onnx/another.onnx, onnx/other.onnx with --onnx" in error
    assert error.count("\n") == 1
    assert main([*words, "--onnx", "onnx/missing.onnx"]) == 1
    assert "no ONNX file onnx/missing.onnx (--onnx); it has" in capsys.readouterr().err
    assert main([*words, "--onnx", "onnx/other.onnx", "--precision", "fp32"]) == 0
    assert Bundle.open(tmp_path / "bundle").manifest.reference == "onnx"


def test_only_the_logits_are_kept(source: Path, tmp_path: Path) -> None:
    """A graph that gives hidden states, too, and does not say how many logits there are."""
    model = onnx.load_model(source / GRAPH)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "labels"
    extra = helper.make_tensor_value_info("/Tanh_0", TensorProto.FLOAT, None)
    extra.name = next(n for n in model.graph.node if n.op_type == "Tanh").output[0]
    model.graph.output.insert(0, extra)
    save(model, source / GRAPH)
    _export(source, tmp_path / "bundle")
    assert _logits(tmp_path / "bundle", "int8").shape == (len(CORPUS), 3)


def test_labels_that_config_json_does_not_name_are_counted(source: Path, tmp_path: Path) -> None:
    """The graph says how many there are; ``--labels`` names them."""
    configure(source, id2label=None, label2id=None)
    assert load_checkpoint(source, CheckpointOptions(onnx="")).labels == [
        "LABEL_0",
        "LABEL_1",
        "LABEL_2",
    ]
    options = CheckpointOptions(labels=("bad", "so-so", "good"))
    assert load_checkpoint(source, options).labels == ["bad", "so-so", "good"]


def test_config_json_is_read_for_texts_and_labels_only(source: Path) -> None:
    """What the graph computes, the graph says: notes of other tools refuse nothing."""
    configure(source, **{"transformers.js_config": {"dtype": "q8"}, "transformers_version": "5.9"})
    configure(source, auto_map={"AutoModelForSequenceClassification": "mine.Bert"})
    checkpoint = load_checkpoint(source, CheckpointOptions(onnx=""))
    assert checkpoint.graph is not None
    assert checkpoint.notes == []


@pytest.mark.parametrize("quantized", [False, True])
def test_a_graph_is_described(
    bert: Exported, source: Path, capsys: pytest.CaptureFixture[str], quantized: bool
) -> None:
    """By ``describe``: its labels, tokenizer, weights and files, and what an export makes of it."""
    configure(source, id2label=None, label2id=None)
    if quantized:
        quantize(source / GRAPH, source / GRAPH)
    weights_outside(source / GRAPH)
    assert main(["describe", str(source), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert (told["tokenizer"], told["max_tokens"]) == ("WordPiece", MAX_TOKENS)
    assert told["files"].keys() >= {GRAPH, f"{GRAPH}_data", "config.json"}
    assert told["problems"] == []
    assert told["changes"][0].startswith(f"the graph: {'as' if quantized else 'padding'}")
    if not quantized:
        assert told["parameters"] == describe(bert.source).parameters
    (source / "vocab.txt").unlink()
    configure(source, num_labels=5)
    problems = describe(source).problems
    assert any("gives 3 logits, but config.json names 5 labels" in each for each in problems)
    assert any("lacks its tokenizer" in each for each in problems)


def test_of_several_graphs_the_named_one_is_described(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``describe`` takes the ``--onnx`` that it asks for."""
    (source / GRAPH).rename(source / "onnx" / "model_a.onnx")
    shutil.copy(source / "onnx" / "model_a.onnx", source / "onnx" / "model_b.onnx")
    assert main(["describe", str(source)]) == 1
    assert "with --onnx" in capsys.readouterr().err
    assert main(["describe", str(source), "--onnx", "onnx/model_b.onnx", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []


def test_operators_may_be_of_the_domain_by_its_long_name(source: Path, tmp_path: Path) -> None:
    """``ai.onnx`` is another name of the domain that usually has none."""
    model = onnx.load_model(source / GRAPH)
    for named in (*model.opset_import[:1], *model.graph.node):
        named.domain = "ai.onnx"
    save(model, source / GRAPH)
    assert [*_export(source, tmp_path / "bundle").variants] == ["fp32", "int8"]


Change = Callable[[ModelProto], object]


def _input(name: str, *axes: int | str, kind: int = TensorProto.INT64) -> Change:
    def change(model: ModelProto) -> None:
        value = helper.make_tensor_value_info(name, kind, axes)
        held = {one.name: one for one in model.graph.input}
        if name in held:
            held[name].CopyFrom(value)
        else:
            model.graph.input.append(value)

    return change


def _output(name: str, axes: int = 3) -> Change:
    def change(model: ModelProto) -> None:
        wanted = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["a", "b", "c"][:axes])
        model.graph.node[-1].output[0] = name
        model.graph.output[0].CopyFrom(wanted)

    return change


def _scores(kind: str) -> Change:
    def change(model: ModelProto) -> None:
        model.graph.initializer.append(helper.make_tensor("one", TensorProto.FLOAT, [], [1]))
        model.graph.node.append(helper.make_node(kind, ["logits"], ["scores"]))
        model.graph.node.append(helper.make_node("Mul", ["scores", "one"], ["output"]))
        model.graph.output[0].name = "output"

    return change


def _node(kind: str, domain: str = "") -> Change:
    return lambda model: model.graph.node.append(
        helper.make_node(kind, ["logits"], ["unread"], domain=domain)
    )


def _custom(model: ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("org.example", 1))
    node = helper.make_node("Twice", ["logits"], ["twice"], domain="org.example")
    model.graph.node.append(node)
    model.graph.output[0].name = "twice"


def _endless(model: ModelProto) -> None:
    model.graph.node[0].op_type = "function0"
    _in_functions(model, "function0")
    model.functions[0].node[0].domain = "mine"


def _with_one_input_more(model: ModelProto) -> None:
    _in_functions(model, "Erf")
    node = next(one for one in model.graph.node if one.domain == "mine")
    node.input.append(node.input[0])


def _without_mask(model: ModelProto) -> None:
    names = [one.name for one in model.graph.input]
    del model.graph.input[names.index("attention_mask")]
    shape = helper.make_node("Shape", ["input_ids"], ["shape"])
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    ones = helper.make_node("ConstantOfShape", ["shape"], ["attention_mask"], value=one)
    nodes = [shape, ones, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _two_outputs(model: ModelProto) -> None:
    _output("last_hidden_state")(model)
    model.graph.output.insert(0, helper.make_tensor_value_info("first", TensorProto.FLOAT, ["a"]))


def _one_text(model: ModelProto) -> None:
    model.graph.initializer.append(helper.make_tensor("one_text", TensorProto.INT64, [2], [1, 3]))
    model.graph.node.append(helper.make_node("Reshape", ["logits", "one_text"], ["of_one"]))
    model.graph.output[0].name = "of_one"


def _longer_than_positions(model: ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.name == "bert.embeddings.position_embeddings.weight":
            held = onnx.numpy_helper.to_array(tensor)[: MAX_TOKENS // 2]
            tensor.CopyFrom(onnx.numpy_helper.from_array(held, tensor.name))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_input("position_ids", "a", "b"), "takes position_ids; the inputs .* can be input_ids, "),
        (
            _input("input_ids", "a", "b", kind=TensorProto.INT32),
            "takes input_ids as int32; .*int64",
        ),
        (_input("input_ids", 1, "b"), r"takes input_ids of the fixed shape \[1, any\]"),
        (_input("input_ids", "a", 128), r"of the fixed shape \[any, 128\]"),
        (_output("last_hidden_state"), "gives last_hidden_state and no logits"),
        (_output("logits"), "gives logits with 3 axes"),
        (_two_outputs, "gives first, last_hidden_state and no logits: .* must be named logits"),
        (_one_text, "fails on a batch of 4 .* dynamic axes .*Reshape"),
        (_scores("Softmax"), "gives scores, not logits: all are from 0 to 1"),
        (_scores("Sigmoid"), "gives scores, not logits: all are from 0 to 1"),
        (lambda m: m.graph.output.pop() and None, "it is not an ONNX model, or was cut"),
        (lambda m: setattr(m.opset_import[0], "version", 99), "is of opset 99; the newest"),
        (lambda m: setattr(m, "ir_version", 99), "cannot load .*IR version"),
        (_node("MatMulNBits", "com.microsoft"), r"weights of 4 bits \(MatMulNBits\)"),
        (_custom, "cannot load .*org.example:Twice"),
        (_endless, "it is not an ONNX model, or was cut .*recursive"),
        (_with_one_input_more, "it is not an ONNX model, or was cut"),
        (_without_mask, "takes no attention_mask"),
        (
            _longer_than_positions,
            "fails on a text of .* tokens .* give their number to --max-tokens",
        ),
    ],
)
def test_a_graph_that_cannot_be_served_is_refused(
    source: Path, tmp_path: Path, change: Change, says: str
) -> None:
    """In one line, and nothing is written."""
    model = onnx.load_model(source / GRAPH)
    change(model)
    save(model, source / GRAPH)
    _refused(source, tmp_path / "bundle", says)


def _refused(source: Path, output: Path, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        _export(source, output)
    assert "\n" not in str(caught.value)
    assert not [path for path in output.parent.iterdir() if path.name.startswith(output.name)]


def _cut(source: Path) -> None:
    held = (source / GRAPH).read_bytes()
    (source / GRAPH).write_bytes(held[: len(held) // 2])


def _renamed_data(source: Path, location: str) -> None:
    weights_outside(source / GRAPH)
    model = onnx.load_model(source / GRAPH, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    (source / GRAPH).write_bytes(model.SerializeToString())


def _short_data(source: Path) -> None:
    weights_outside(source / GRAPH)
    data = source / f"{GRAPH}_data"
    data.write_bytes(data.read_bytes()[:-8])


def _shifted_data(source: Path) -> None:
    weights_outside(source / GRAPH)
    model = onnx.load_model(source / GRAPH, load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.external_data)
    next(entry for entry in tensor.external_data if entry.key == "length").value = "4"
    (source / GRAPH).write_bytes(model.SerializeToString())


def _without_head(source: Path) -> None:
    configure(source, architectures=["BertModel"])
    model = onnx.load_model(source / GRAPH)
    _output("last_hidden_state")(model)  # of which alone would be said less that helps
    save(model, source / GRAPH)


def _longer_vocabulary(source: Path) -> None:
    with (source / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("".join(f"more{number}\n" for number in range(100)))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_cut, "it is not an ONNX model, or was cut"),
        (lambda s: (s / GRAPH).write_bytes(b""), "it is not an ONNX model, or was cut"),
        (
            lambda s: (s / GRAPH).write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
            "holds pointers of Git LFS",
        ),
        (lambda s: _renamed_data(s, "gone"), "weights in gone, which is missing"),
        (lambda s: _renamed_data(s, "../../secret"), "which is not a file in its own directory"),
        (lambda s: _renamed_data(s, "/etc/passwd"), "which is not a file in its own directory"),
        (_short_data, "was cut: it has"),
        (_shifted_data, "does not fit its shape"),
        (
            lambda s: configure(s, id2label={"0": "a", "1": "b"}),
            r"shape \[1, 3\] .* names 2 labels",
        ),
        (lambda s: (s / "vocab.txt").unlink(), "lacks its tokenizer"),
        (_without_head, "is a BertModel, not a sequence"),
        (
            lambda s: configure(s, model_type="longformer"),
            "architecture longformer: this exporter does not know how its texts become tokens",
        ),
        (
            lambda s: (s / GRAPH).rename(s / "model.ort"),
            "has no weights: .*; model.ort cannot be read",
        ),
        (_longer_vocabulary, "the tokenizer's largest id is .*, but the model's embedding has"),
    ],
)
def test_a_damaged_directory_is_refused(
    source: Path, tmp_path: Path, damage: Callable[[Path], object], says: str
) -> None:
    """In one line, and nothing is written."""
    damage(source)
    _refused(source, tmp_path / "bundle", says)


def test_a_bundle_without_its_manifest_is_called_that(bert: Exported, tmp_path: Path) -> None:
    """Its graphs are the exporter's own, and not a source."""
    source = shutil.copytree(bert.bundle, tmp_path / "source")
    (source / "manifest.json").unlink()
    _refused(source, tmp_path / "bundle", "the graph of a bundle, which lacks its manifest.json")


@pytest.mark.parametrize("options", [{"reference": "fp32"}, {"debug_parity": True}])
def test_a_graph_has_no_other_reference(
    source: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """PyTorch has no weights to compute with, and the layers no names."""
    with pytest.raises(UserError, match=r"needs weights, and .*model\.onnx is an ONNX graph"):
        _export(source, tmp_path / "bundle", **options)


def test_labelled_texts_are_scored(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--evaluate`` records the scores of what is made of a graph."""
    rows = [json.dumps({"text": text, "label": "neutral"}) for text in CORPUS]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows), encoding="utf-8")
    words = ["--output", str(tmp_path / "bundle"), "--precision", "fp32"]
    assert main([str(source), *words, "--evaluate", str(tmp_path / "texts.jsonl")]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert Bundle.open(tmp_path / "bundle").manifest.variants["fp32"].accuracy
