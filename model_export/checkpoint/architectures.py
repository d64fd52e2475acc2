"""The table of architectures: what is exported, and what each needs and gets."""

from dataclasses import dataclass

# Sets of files from which a tokenizer can be made, besides tokenizer.json; one set is enough.
BYTE_LEVEL_BPE = ("vocab.json", "merges.txt")
BERTWEET_BPE = ("vocab.txt", "bpe.codes")
WORD_PIECE = ("vocab.txt",)
SENTENCEPIECE_BPE = ("sentencepiece.bpe.model",)
SENTENCEPIECE = ("spm.model",)
ALBERT_SENTENCEPIECE = ("spiece.model",)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model type of transformers that has a sequence classifier.

    ``layers`` says whether the graph passes find its encoder layers: then padding is left out, the
    last layer computes the first token only, and int8 quantizes whole layers. Otherwise the graph
    stays as exported, and int8 quantizes each linear layer by itself.
    """

    name: str
    example: str  # a public checkpoint whose file layout the tests build
    tokenizers: tuple[tuple[str, ...], ...]
    layers: bool = False
    # Position ids start at the padding id + 1, so the rows before it are never used.
    offset_positions: bool = False


# By model_type in config.json.
ARCHITECTURES = {
    "roberta": Architecture(
        "RoBERTa",
        "cardiffnlp/twitter-roberta-base-sentiment-latest",
        (BYTE_LEVEL_BPE, BERTWEET_BPE),
        layers=True,
        offset_positions=True,
    ),
    "xlm-roberta": Architecture(
        "XLM-RoBERTa",
        "cardiffnlp/twitter-xlm-roberta-base-sentiment",
        (SENTENCEPIECE_BPE,),
        layers=True,
        offset_positions=True,
    ),
    "bert": Architecture(
        "BERT",
        "nlptown/bert-base-multilingual-uncased-sentiment",
        (WORD_PIECE,),
        layers=True,
    ),
    "distilbert": Architecture(
        "DistilBERT",
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
        (WORD_PIECE,),
        layers=True,
    ),
    "camembert": Architecture(
        "CamemBERT",
        "cmarkea/distilcamembert-base-sentiment",
        (SENTENCEPIECE_BPE,),
        layers=True,
        offset_positions=True,
    ),
    "electra": Architecture(
        "ELECTRA",
        "bhadresh-savani/electra-base-emotion",
        (WORD_PIECE,),
        layers=True,
    ),
    "albert": Architecture("ALBERT", "textattack/albert-base-v2-SST-2", (ALBERT_SENTENCEPIECE,)),
    "mpnet": Architecture("MPNet", "florentgbelidji/setfit_emotion", (WORD_PIECE,)),
    "deberta": Architecture("DeBERTa", "microsoft/deberta-base-mnli", (BYTE_LEVEL_BPE,)),
    "deberta-v2": Architecture(
        "DeBERTa-v2/v3", "yangheng/deberta-v3-base-absa-v1.1", (SENTENCEPIECE,)
    ),
    "modernbert": Architecture("ModernBERT", "clapAI/modernBERT-base-multilingual-sentiment", ()),
    "data2vec-text": Architecture(
        "data2vec-text",
        "facebook/data2vec-text-base",
        (BYTE_LEVEL_BPE,),
        layers=True,
        offset_positions=True,
    ),
    "big_bird": Architecture("BigBird", "google/bigbird-roberta-base", (SENTENCEPIECE,)),
    "longformer": Architecture(
        "Longformer", "allenai/longformer-base-4096", (BYTE_LEVEL_BPE,), offset_positions=True
    ),
}
