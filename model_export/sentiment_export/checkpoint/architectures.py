"""The table of architectures: what is exported, what each needs and gets, and what is refused.

docs/architectures.md shows the same table to users; a test compares the two. Below it, the files of
a checkpoint that are read: config, tokenizer, and weights or an ONNX graph.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sentiment_service.engine.model.bundle import MANIFEST
from sentiment_service.errors import UserError, first_line


class NotRecognised(UserError):
    """The model is not of BERT's family, or its graph not of the form that a pass needs."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"unsupported architecture: {reason}")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Files from which a tokenizer can be made if there is no tokenizer.json; all are needed."""

    kind: str
    names: tuple[str, ...]


BYTE_LEVEL_BPE = TokenizerFiles("byte-level BPE", ("vocab.json", "merges.txt"))
BERTWEET_BPE = TokenizerFiles("byte pair encoding (fastBPE)", ("vocab.txt", "bpe.codes"))
WORD_PIECE = TokenizerFiles("WordPiece", ("vocab.txt",))
SENTENCEPIECE = "sentencepiece"
SENTENCEPIECE_BPE = TokenizerFiles(SENTENCEPIECE, ("sentencepiece.bpe.model",))
SPM = TokenizerFiles(SENTENCEPIECE, ("spm.model",))
SPIECE = TokenizerFiles(SENTENCEPIECE, ("spiece.model",))


Entries = Mapping[str, Any]  # of config.json; what it leaves out has transformers' default


def _rows(config: Entries, default: int = 512) -> int:
    return int(config.get("max_position_embeddings", default))


def every_row(config: Entries) -> int:
    """Each row of the position table is one token's, or there is no table but a trained length."""
    return _rows(config, 8192 if config["model_type"] == "modernbert" else 512)


def rows_after_padding(config: Entries) -> int:
    """Position ids start at the padding id + 1: RoBERTa's 514 rows are for 512 tokens."""
    return _rows(config) - int(config.get("pad_token_id", 1)) - 1


def rows_after_one(config: Entries) -> int:
    """As ``rows_after_padding``, with the padding id 1 whatever config.json says (MPNet)."""
    return _rows(config) - 2


def full_attention(config: Entries) -> int:
    """The number of tokens up to which BigBird attends to all tokens.

    In longer texts, its sparse attention picks blocks at random, which no graph can repeat.
    """
    rows = _rows(config, 4096)
    if config.get("attention_type", "block_sparse") == "original_full":
        return rows
    blocks = 5 + 2 * int(config.get("num_random_blocks", 3))
    return min(rows, blocks * int(config.get("block_size", 64)))


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model type of transformers that has a sequence classifier.

    ``prefix`` begins the names of its classes there. ``max_tokens`` takes the model's config and
    returns how many tokens have a position, special ones included.
    """

    name: str
    prefix: str
    example: str  # a public checkpoint whose file layout the tests build
    tokenizers: tuple[TokenizerFiles, ...]  # the first complete one is read
    max_tokens: Callable[[Entries], int] = every_row

    def tokenizer_files(self, present: Collection[str]) -> TokenizerFiles | None:
        """The first of ``tokenizers`` whose files are all among the names ``present``."""
        return next((t for t in self.tokenizers if set(t.names) <= set(present)), None)

    @property
    def class_name(self) -> str:
        """The name of the classifier's class in transformers."""
        return f"{self.prefix}ForSequenceClassification"


# By model_type in config.json.
ARCHITECTURES = {
    "roberta": Architecture(
        "RoBERTa",
        "Roberta",
        "cardiffnlp/twitter-roberta-base-sentiment-latest",
        (BYTE_LEVEL_BPE, BERTWEET_BPE),
        max_tokens=rows_after_padding,
    ),
    "xlm-roberta": Architecture(
        "XLM-RoBERTa",
        "XLMRoberta",
        "cardiffnlp/twitter-xlm-roberta-base-sentiment",
        (SENTENCEPIECE_BPE,),
        max_tokens=rows_after_padding,
    ),
    "bert": Architecture(
        "BERT", "Bert", "nlptown/bert-base-multilingual-uncased-sentiment", (WORD_PIECE,)
    ),
    "distilbert": Architecture(
        "DistilBERT",
        "DistilBert",
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
        (WORD_PIECE,),
    ),
    "camembert": Architecture(
        "CamemBERT",
        "Camembert",
        "cmarkea/distilcamembert-base-sentiment",
        (SENTENCEPIECE_BPE,),
        max_tokens=rows_after_padding,
    ),
    "electra": Architecture(
        "ELECTRA", "Electra", "bhadresh-savani/electra-base-emotion", (WORD_PIECE,)
    ),
    "albert": Architecture("ALBERT", "Albert", "textattack/albert-base-v2-SST-2", (SPIECE,)),
    "mpnet": Architecture(
        "MPNet", "MPNet", "microsoft/mpnet-base", (WORD_PIECE,), max_tokens=rows_after_one
    ),
    "deberta": Architecture("DeBERTa", "Deberta", "microsoft/deberta-base-mnli", (BYTE_LEVEL_BPE,)),
    "deberta-v2": Architecture(
        "DeBERTa-v2/v3", "DebertaV2", "yangheng/deberta-v3-base-absa-v1.1", (SPM,)
    ),
    "modernbert": Architecture(
        "ModernBERT", "ModernBert", "clapAI/modernBERT-base-multilingual-sentiment", ()
    ),
    "data2vec-text": Architecture(
        "data2vec-text",
        "Data2VecText",
        "facebook/data2vec-text-base",
        (BYTE_LEVEL_BPE,),
        max_tokens=rows_after_padding,
    ),
    "big_bird": Architecture(
        "BigBird", "BigBird", "google/bigbird-roberta-base", (SPIECE,), max_tokens=full_attention
    ),
}

# What people ask for and do not get: the model types of each reason. All others that are not in
# ARCHITECTURES are refused without a reason of their own.
REFUSED = {
    "it is an encoder with a decoder, and this service runs encoders": "bart mbart mt5 t5",
    "it classifies by its last token, and this service reads the first": (
        "bloom gemma2 gemma3_text gpt2 gpt_neox llama mistral opt phi3 qwen2 qwen3"
    ),
    "PyTorch cannot export it to ONNX": "canine funnel longformer xlnet",
    "its layers simulate integer arithmetic, which the export does not keep": "ibert",
}


def find_architecture(model_type: object, where: str) -> Architecture:
    if not isinstance(model_type, str):
        raise UserError(f"{where}: config.json has no model_type, so its architecture is unknown")
    if model_type in ARCHITECTURES:
        return ARCHITECTURES[model_type]
    if (spelled := model_type.lower()) in ARCHITECTURES:
        raise UserError(
            f'{where}: model_type in config.json is "{model_type}"; it must be "{spelled}", as '
            "transformers spells it"
        )
    reasons = (why for why, types in REFUSED.items() if spelled in types.split())
    reason = next(reasons, "this exporter does not know it")
    taken = ", ".join(architecture.name for architecture in ARCHITECTURES.values())
    raise UserError(
        f"{where} is of the unsupported architecture {model_type}: {reason}; use a sequence "
        f"classifier of one of these architectures: {taken}"
    )


CONFIG_FILE = "config.json"
ADAPTER_FILE = "adapter_config.json"
# What SetFit saves beside an encoder: a classifier of scikit-learn, or of its own.
SETFIT_FILES = ("model_head.pkl", "model_head.skops", "config_setfit.json")
# Files that the tokenizers of the architectures may use; each may be absent.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    *dict.fromkeys(
        name
        for architecture in ARCHITECTURES.values()
        for files in architecture.tokenizers
        for name in files.names
    ),
)
# Preferred first: safetensors hold only tensors. An index names the shards of a large model.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
GRAPH = ".onnx"
# The fp32 graph of a directory that has several: Optimum's name, and transformers.js's.
FP32_GRAPHS = ("model.onnx", "onnx/model.onnx")
# The first line of what Git leaves in place of a large file, before Git LFS fetches the file.
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def choose_files(
    names: Iterable[str], where: str, onnx: str | None = None
) -> tuple[list[str], str]:
    """Choose the files to read from the file names of a checkpoint.

    ``onnx`` is the graph to read in the place of weights (``--onnx``); "" is the one fp32 graph
    where there are no weights, and None takes none.

    Returns:
        The config and tokenizer files, and the weights: one file, the index of the shards, or a
        graph.
    """
    held = set(names)
    weights = next((name for name in WEIGHT_FILES if name in held), None)
    if onnx or (onnx is not None and weights is None and MANIFEST not in held):
        weights = _choose_graph(held, where, onnx) or weights
    if ADAPTER_FILE in held:
        raise UserError(
            f"{where} holds an adapter of PEFT: merge it first (merge_and_unload), and save the "
            f"whole model; to leave the adapter out of a model, remove {ADAPTER_FILE}"
        )
    if setfit := next((name for name in SETFIT_FILES if name in held), None):
        raise UserError(
            f"{where} holds {setfit}, so it is a model of SetFit, whose classifier is not in its "
            "weights: fine-tune a sequence classifier on the same texts (sentiment-export finetune)"
        )
    if CONFIG_FILE not in held:
        raise UserError(f"{where} has no {CONFIG_FILE}, so it is not a checkpoint")
    if weights is None and MANIFEST in held:
        raise UserError(
            f"{where} is a bundle, which is what an export makes; serve it with --model"
        )
    if weights is None:
        unread = (".h5", ".msgpack", ".ckpt.index", GRAPH)
        other = sorted(name for name in held if name.endswith(unread))
        instead = f"; {', '.join(other[:3])} cannot be read" if other else ""
        raise UserError(
            f"{where} has no weights: one of {', '.join(WEIGHT_FILES)} is needed{instead}"
        )
    return [CONFIG_FILE, *(name for name in TOKENIZER_FILES if name in held)], weights


def _choose_graph(held: set[str], where: str, wanted: str) -> str | None:
    """The graph that is ``wanted``, or the only fp32 one; None if there are no graphs."""
    graphs = sorted(name for name in held if name.endswith(GRAPH))
    if wanted:
        name = PurePosixPath(wanted).as_posix()
        if name in graphs:
            return name
        listed = f"; it has {', '.join(graphs)}" if graphs else ""
        raise UserError(f"{where} has no ONNX file {wanted} (--onnx){listed}")
    chosen = [name for name in FP32_GRAPHS if name in graphs] or graphs
    if len(chosen) > 1:
        raise UserError(
            f"{where} has {len(graphs)} ONNX graphs: choose one of {', '.join(graphs)} with --onnx"
        )
    return chosen[0] if chosen else None


def names_in(path: Path) -> list[str]:
    """The names of the files in a directory, and of the ONNX files in the directories in it."""
    found = [*path.iterdir(), *path.glob(f"*/*{GRAPH}")]
    return [file.relative_to(path).as_posix() for file in found if file.is_file()]


def weight_files(path: Path, weights: str) -> list[str]:
    """The names of all files in ``path`` that hold weights: ``weights``, its shards or its data."""
    if not weights.endswith(GRAPH):
        return list(dict.fromkeys([weights, *shards(path / weights)]))
    from sentiment_export.checkpoint.graph_file import data_files  # needs onnx

    folder = PurePosixPath(weights).parent
    return [weights, *(str(folder / name) for name in data_files(path / weights))]


def choose_local_files(path: Path, onnx: str | None = None) -> tuple[list[str], str]:
    """The same as ``choose_files`` for a local checkpoint directory, whose files are there."""
    if not path.is_dir():
        raise UserError(f"{path} is not a directory; give a local checkpoint directory")
    side_files, weights = choose_files(names_in(path), str(path), onnx)
    pointers = [name for name in (*side_files, weights) if _is_pointer(path / name)]
    if weights not in pointers:
        pointers += [name for name in weight_files(path, weights) if _is_pointer(path / name)]
    if pointers:
        raise UserError(
            f"{path} holds pointers of Git LFS instead of files ({', '.join(pointers[:3])}): run "
            "`git lfs pull` there"
        )
    return side_files, weights


def _is_pointer(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, which may begin with a byte order mark."""
    try:
        held = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {first_line(error)}") from error
    if not isinstance(held, dict):
        raise UserError(f"cannot read {path}: it is not a JSON object")
    return held


def shards(weights: Path) -> list[str]:
    """The files that hold the tensors: ``weights`` itself, or the shards of an index."""
    if not weights.name.endswith(".index.json"):
        return [weights.name]
    listed = read_json(weights).get("weight_map")
    names = set(map(str, listed.values())) if isinstance(listed, dict) else set()
    if not names or any(Path(name).name != name for name in names):
        raise UserError(f"{weights} names no shards, or some that are not in its own directory")
    return sorted(names)
