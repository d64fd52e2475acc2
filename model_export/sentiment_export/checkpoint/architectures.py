"""The table of architectures: what is exported, what each needs and gets, and what is refused.

docs/architectures.md shows the same table to users; a test compares the two.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sentiment_service.errors import UserError


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


def find_architecture(model_type: object, where: str, *, of_graph: bool = False) -> Architecture:
    """The architecture; errors name ``where``, and why it is not taken as weights or a graph."""
    if not isinstance(model_type, str):
        raise UserError(
            f"{where}: config.json has no model_type, so its architecture is unknown; add the line "
            f'"model_type", with one of {", ".join(ARCHITECTURES)}'
        )
    if model_type in ARCHITECTURES:
        return ARCHITECTURES[model_type]
    reasons = (why for why, types in REFUSED.items() if model_type in types.split())
    reason = next(reasons, "this exporter does not know it")
    if of_graph:
        reason = "this exporter does not know how its texts become tokens, nor how many"
    taken = ", ".join(architecture.name for architecture in ARCHITECTURES.values())
    raise UserError(
        f"{where} is of the unsupported architecture {model_type}: {reason}; use a sequence "
        f"classifier of one of these architectures: {taken}"
    )
