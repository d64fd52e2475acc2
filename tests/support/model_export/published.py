"""Tiny checkpoints with the files and config entries of public ones.

Weights and vocabularies are made up. File names, the names of weights, the entries of config.json
and the kind of tokenizer are those of the public checkpoint.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceTrainer
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from tests.support.checkpoints import (
    BERTS,
    CORPUS,
    byte_level_bpe,
    random_model,
    save_model,
    word_piece,
)

LABELS = ("negative", "neutral", "positive")
EMOTIONS = ("sadness", "joy", "love", "anger", "fear", "surprise")
STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
OF_ROBERTA = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
OF_BERT = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
# What DeBERTa computes with: positions relative to each other, in both directions.
DISENTANGLED = {"relative_attention": True, "position_biased_input": False, "type_vocab_size": 0}


@dataclass(frozen=True)
class Published:
    """The layout of a public checkpoint: everything that differs from one to another."""

    model_type: str
    write_tokenizer: Callable[[Path], object]
    labels: tuple[str, ...] = LABELS
    config: dict[str, Any] = field(default_factory=dict)
    tokenizer_config: dict[str, Any] = field(default_factory=dict)
    special_tokens: dict[str, str] = field(default_factory=dict)
    whole: bool = False  # a tokenizer.json is there too
    pickled: bool = True


def make_published(path: Path, name: str) -> Path:
    """Write the tiny form of the public checkpoint that ``PUBLISHED`` has under this hub id."""
    layout = PUBLISHED[name]
    path.mkdir(parents=True)
    layout.write_tokenizer(path)
    if layout.tokenizer_config:
        _write_json(path / "tokenizer_config.json", layout.tokenizer_config)
    if layout.special_tokens:
        _write_json(path / "special_tokens_map.json", layout.special_tokens)
    _write_json(path / "config.json", {"model_type": layout.model_type})
    tokenizer = AutoTokenizer.from_pretrained(path)
    if layout.whole:
        tokenizer.backend_tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "id2label": dict(enumerate(layout.labels)),
        "label2id": {label: index for index, label in enumerate(layout.labels)},
        **layout.config,
    }
    rows = max(tokenizer.get_vocab().values()) + 1
    save_model(path, random_model(layout.model_type, rows, **config), pickled=layout.pickled)
    return path


def sentencepiece(
    name: str, texts: Sequence[str] = CORPUS * 3, **options: Any
) -> Callable[[Path], None]:
    """Writes a sentencepiece model. One thread trains it, so it is the same every time."""

    def write(path: Path) -> None:
        model = io.BytesIO()
        usual: dict[str, Any] = {
            "vocab_size": 130,
            "normalization_rule_name": "nmt_nfkc",
            "num_threads": 1,
        }
        SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            minloglevel=2,
            **(usual | options),
        )
        (path / name).write_bytes(model.getvalue())

    return write


def deberta_v3(path: Path) -> None:
    """spm.model with the special tokens in front, and [MASK] as an added token after the rest."""
    sentencepiece(
        "spm.model",
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        pad_piece="[PAD]",
        bos_piece="[CLS]",
        eos_piece="[SEP]",
        unk_piece="[UNK]",
    )(path)
    _write_json(path / "added_tokens.json", {"[MASK]": 130})


def modernbert(path: Path) -> None:
    """tokenizer.json and no other file: byte-level BPE with the special tokens of BERT."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        CORPUS, vocab_size=400, special_tokens=list(BERTS), show_progress=False
    )
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(path / "tokenizer.json"))


PUBLISHED = {
    "cardiffnlp/twitter-roberta-base-sentiment-latest": Published(
        "roberta", byte_level_bpe, special_tokens=OF_ROBERTA
    ),
    "j-hartmann/emotion-english-distilroberta-base": Published(
        "roberta", byte_level_bpe, EMOTIONS, {"num_hidden_layers": 1}, whole=True
    ),
    "cardiffnlp/twitter-xlm-roberta-base-sentiment": Published(
        "xlm-roberta", sentencepiece("sentencepiece.bpe.model")
    ),
    "nlptown/bert-base-multilingual-uncased-sentiment": Published(
        "bert",
        word_piece,
        STARS,
        tokenizer_config={"do_lower_case": True},
        special_tokens=OF_BERT,
    ),
    "google-bert/bert-base-multilingual-cased": Published(
        "bert", word_piece, tokenizer_config={"do_lower_case": False}, whole=True, pickled=False
    ),
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english": Published(
        "distilbert",
        word_piece,
        ("NEGATIVE", "POSITIVE"),
        tokenizer_config={"do_lower_case": True},
        pickled=False,
    ),
    "lxyuan/distilbert-base-multilingual-cased-sentiments-student": Published(
        "distilbert",
        word_piece,
        ("positive", "neutral", "negative"),
        tokenizer_config={"do_lower_case": False, "tokenizer_class": "DistilBertTokenizer"},
        whole=True,
        pickled=False,
    ),
    "cmarkea/distilcamembert-base-sentiment": Published(
        "camembert", sentencepiece("sentencepiece.bpe.model"), STARS, whole=True
    ),
    "almanach/camembert-base": Published("camembert", sentencepiece("sentencepiece.bpe.model")),
    "bhadresh-savani/electra-base-emotion": Published(
        "electra", word_piece, EMOTIONS, {"embedding_size": 32}, whole=True
    ),
    "textattack/albert-base-v2-SST-2": Published(
        "albert",
        sentencepiece(
            "spiece.model",
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols="[CLS],[SEP],[MASK]",
            user_defined_symbols="(,),-,.,–,£,€",
        ),
        ("LABEL_0", "LABEL_1"),
        {"embedding_size": 32, "hidden_act": "gelu_new", "inner_group_num": 1},
        special_tokens={**OF_BERT, "unk_token": "<unk>", "pad_token": "<pad>"},
    ),
    "microsoft/mpnet-base": Published(
        "mpnet",
        lambda path: word_piece(path, ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")),
        config={"relative_attention_num_buckets": 32},
    ),
    "microsoft/deberta-base-mnli": Published(
        "deberta",
        lambda path: byte_level_bpe(path, BERTS),
        ("CONTRADICTION", "NEUTRAL", "ENTAILMENT"),
        {**DISENTANGLED, "pos_att_type": "c2p|p2c", "max_relative_positions": -1},
    ),
    "yangheng/deberta-v3-base-absa-v1.1": Published(
        "deberta-v2",
        deberta_v3,
        ("Negative", "Neutral", "Positive"),
        {
            **DISENTANGLED,
            "pos_att_type": ["p2c", "c2p"],
            "max_relative_positions": -1,
            "position_buckets": 16,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
        tokenizer_config={
            "do_lower_case": False,
            "split_by_punct": False,
            "sp_model_kwargs": {},
            "tokenizer_class": "DebertaV2Tokenizer",
            "vocab_type": "spm",
        },
    ),
    "clapAI/modernBERT-base-multilingual-sentiment": Published(
        "modernbert",
        modernbert,
        config={
            "local_attention": 8,
            "global_attn_every_n_layers": 2,
            "num_hidden_layers": 3,
            "classifier_pooling": "mean",
        },
        tokenizer_config={**OF_BERT, "tokenizer_class": "PreTrainedTokenizerFast"},
        pickled=False,
    ),
    "facebook/data2vec-text-base": Published("data2vec-text", byte_level_bpe, whole=True),
    "google/bigbird-roberta-base": Published(
        "big_bird",
        sentencepiece(
            "spiece.model",
            model_type="bpe",
            pad_id=0,
            eos_id=1,
            bos_id=2,
            unk_id=3,
            control_symbols="[CLS],[SEP],[MASK]",
        ),
        config={"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1},
    ),
}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
