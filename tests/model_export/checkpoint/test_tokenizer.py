# ruff: noqa: RUF001 - signs of every kind are what is tested
"""Tokenizers against those of transformers, on thousands of texts made up here.

The texts mix pieces of sentences in nine languages with signs that tweets, broken clients and
attackers insert. All sentences were written for this test.
"""

import json
import random
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor
from sentiment_export.checkpoint.config import read_config
from sentiment_export.checkpoint.tokenizer import CheckpointTokenizer, load_tokenizer
from sentiment_service.engine.text.input_tokenizer import InputTokenizer, normalise_tweet
from sentiment_service.engine.text.text_tokenizer import WordCache, packed
from sentiment_service.errors import UserError
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer
from transformers import AutoTokenizer

from tests.support.model_export.published import sentencepiece

SENTENCES = (
    "The ferry left without us, so we ate pancakes on the pier.",
    "Nobody told @maria_k that the match was cancelled! Not fair :( https://example.org/x?y=1",
    "Honestly the best umbrella I've ever owned, 10/10 would get rained on again.",
    "¿Quién dejó la ventana abierta? Hace muchísimo frío en la cocina.",
    "El concierto de anoche fue una maravilla, volvería mañana mismo.",
    "Le boulanger m'a souri, ça a suffi pour sauver ma journée.",
    "Où est passé mon vélo ? Encore volé, je n'en peux plus…",
    "Die Straßenbahn fährt heute nicht, also gehen wir zu Fuß über die Brücke.",
    "Schöner Ausflug, aber das Würstchen war überteuert.",
    "Perché il gelato finisce sempre così presto? È un'ingiustizia.",
    "La nonna ha vinto la partita a carte, che risate!",
    "Não acredito que o ônibus atrasou de novo, que canseira.",
    "A praia estava linda, água morna e ninguém por perto.",
    "आज बारिश में भीगकर बहुत मज़ा आया, चाय भी गरम थी।",
    "यह फ़िल्म मुझे बिल्कुल पसंद नहीं आई।",
    "القهوة هنا لذيذة جدًّا والناس طيبون.",
    "تأخّر القطار مرةً أخرى ولم يعتذر أحد!",
    "今日の夕焼けはとてもきれいだった。ラーメンも最高!",
    "電車が遅れて会議に間に合わなかった、悲しい。",
)
EMOJI = ["😀", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇧🇷", "🇩🇪", "👍🏽", "🤷🏿‍♀️", "❤️", "☺︎", "1️⃣", "💔💔", "🫠"]
CONTROLS = [
    *map(chr, (*range(0x01, 0x20), *range(0x7F, 0xA0), *range(0x200B, 0x2010))),
    *"\ufeff\u2028\u2029\u00ad\u202a\u202e\u2066\u2069\u061c\u2060\u180e\ufffd\ufffe\u0378\U0010ffff",
]
SPACES = [" ", "  ", "     ", "\t", "\n", "\r\n", "\u00a0", "\u2009", "\u3000", " \n "]
FORMS = [
    *(
        "ｆｕｌｌ",
        "Ａ！",
        "e\u0301",
        "n\u0303",
        "\u1ebf",
        "ﬁ",
        "½",
        "x²",
        "℃",
        "™",
        "…",
        "’",
        "“",
        "№",
    ),
    *("𝓱𝓮𝓵𝓵𝓸", "𝟙𝟚", "İ", "ß", "Σς", "漢字", "カナ", "ｶﾞｷﾞﾊﾟ", "ｶﾅ", "한국어", "\U00020000", "ไทย"),
    *("ﻳﻮﻣﻴﺎ\u064b", "ﺗﺠﺒﻪ\u064f", "ﷺ", "\u0640", "▁", "@", "#", "_", "<3", "\ue000"),
]
SPECIAL = [
    *("<s>", "</s>", "<pad>", "<mask>", "<unk>", "<S>", "< s>", "<s", "<un\x0bk>", "＜ｓ＞"),
    *("[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]", "[mask]", "[ SEP ]"),
]
# Families with the same tokenizer files as another one are left out: data2vec-text has RoBERTa's.
BYTE_LEVEL = {
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "deberta": ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"),
}
WORD_PIECE = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "distilbert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "mpnet": ("<s>", "<pad>", "</s>", "[UNK]", "<mask>"),
}
LARGE = {"vocab_size": 280, "character_coverage": 0.9995}
IN_FRONT = {"control_symbols": "[CLS],[SEP],[MASK]", "pad_id": 0}
SENTENCEPIECE: dict[str, tuple[str, dict[str, Any]]] = {
    "xlm-roberta": ("sentencepiece.bpe.model", {}),
    "camembert": ("sentencepiece.bpe.model", {}),
    "albert": (
        "spiece.model",
        {"unk_id": 1, "bos_id": -1, "eos_id": -1, "user_defined_symbols": '(,),",-,.,–,£,€'}
        | IN_FRONT,
    ),
    "deberta-v2": (
        "spm.model",
        {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "unk_piece": "[UNK]"}
        | {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]"},
    ),
    "big_bird": (
        "spiece.model",
        {"eos_id": 1, "bos_id": 2, "unk_id": 3, "model_type": "bpe"} | IN_FRONT,
    ),
}
FAMILIES = (*BYTE_LEVEL, *WORD_PIECE, *SENTENCEPIECE)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each family with the tokenizer files that the hub has of it."""
    base = tmp_path_factory.mktemp("checkpoints")
    for family in FAMILIES:
        (base / family).mkdir()
        (base / family / "config.json").write_text(json.dumps({"model_type": family}))
    corpus = [variant for text in SENTENCES for variant in (text, normalise_tweet(text))]
    for family, special in BYTE_LEVEL.items():
        byte_level = ByteLevelBPETokenizer()
        byte_level.train_from_iterator(
            corpus, vocab_size=600, special_tokens=list(special), show_progress=False
        )
        byte_level.save_model(str(base / family))
    roles = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4, "cls": 0, "sep": 2}
    (base / "roberta" / "special_tokens_map.json").write_text(
        json.dumps({f"{role}_token": BYTE_LEVEL["roberta"][index] for role, index in roles.items()})
    )
    for family, special in WORD_PIECE.items():
        pieces = BertWordPieceTokenizer(lowercase=True)
        pieces.train_from_iterator(
            corpus, vocab_size=600, special_tokens=list(special), show_progress=False
        )
        pieces.save_model(str(base / family))
    for family, (name, options) in SENTENCEPIECE.items():
        sentencepiece(name, corpus, **(LARGE | options))(base / family)
    (base / "deberta-v2" / "added_tokens.json").write_text('{"[MASK]": 280}')
    return base


def _texts(count: int = 2_000) -> list[str]:
    """Pieces of sentences with one to six disturbances; none comes between letter and mark."""
    draw = random.Random(5)
    texts = [*SENTENCES, *EMOJI, *CONTROLS, *SPACES, *FORMS, *SPECIAL, "▁", " ▁▁ ", "▁a ▁", "a\x85"]
    while len(texts) < count:
        units = list(" ".join(draw.choices(SENTENCES, k=draw.choice((1, 1, 2)))))
        if draw.random() < 0.2:
            units = [unit.upper() for unit in units]
        for _ in range(draw.randint(1, 6)):
            places = [i for i, u in enumerate(units) if unicodedata.category(u[0])[0] != "M"]
            unit = draw.choice(draw.choice((EMOJI, CONTROLS, SPACES, FORMS, SPECIAL)))
            units.insert(draw.choice((0, len(units), *draw.choices(places, k=4))), unit)
        text = "".join(units)
        texts.append(normalise_tweet(text) if draw.random() < 0.5 else text)
    return texts


# transformers 5.24 leaves out parts of these two model files: docs/models.md. Ours follow the whole
# file, as sentencepiece itself does.
OF_THE_FILE = ("deberta-v2", "big_bird")


@pytest.fixture
def copied(checkpoints: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copies a family's files; perhaps with a tokenizer.json, and with this tokenizer_config."""

    def copy(family: str, said: object = None, *, whole: bool = False) -> Path:
        shutil.copytree(checkpoints / family, tmp_path, dirs_exist_ok=True)
        if whole:
            made = AutoTokenizer.from_pretrained(tmp_path).backend_tokenizer
            made.save(str(tmp_path / "tokenizer.json"))
        if said is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
        return tmp_path

    return copy


def _loaded(path: Path) -> CheckpointTokenizer:
    return load_tokenizer(path, read_config(path, str(path)))


def _common(family: str, count: int = 2_000) -> list[str]:
    """The texts on which transformers follows the whole model file: those it need not normalise."""
    if family != "deberta-v2":
        return _texts(count)
    return [t for t in _texts(4 * count) if _is_plain(t) and unicodedata.is_normalized("NFKC", t)]


def _is_plain(text: str) -> bool:
    """Whether it has no control, no special token, and single spaces between words only."""
    odd = any(
        sign.lower() in text.lower() for sign in (*SPECIAL, "▁", "\ufffd", "\u064b", "\u064f")
    )
    printable = text.replace("\u200d", "").isprintable()
    return printable and not odd and " ".join(text.split()) == text


@pytest.mark.parametrize("family", OF_THE_FILE)
def test_ids_equal_those_of_the_model_file(checkpoints: Path, family: str) -> None:
    """Normalisation, pieces and merges are what sentencepiece reads from it."""
    _assert_ids_of_file(checkpoints / family, SENTENCEPIECE[family][0])


def _assert_ids_of_file(path: Path, name: str) -> None:
    tokenizer = _loaded(path).tokenizer
    reference = SentencePieceProcessor(model_file=str(path / name))
    texts = [text for text in _texts(8_000) if _is_plain(text)]
    assert len(texts) > 700
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reference.encode(text), text


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "big_bird"])
def test_ids_equal_those_of_transformers(checkpoints: Path, family: str, tmp_path: Path) -> None:
    """So do those of the tokenizer.json that we write, read by the library that serves, and those
    of the cache of words."""
    reference = AutoTokenizer.from_pretrained(checkpoints / family)
    _loaded(checkpoints / family).write(tmp_path, 512)
    served = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    served.no_truncation()
    texts = [*_common(family), ("word " * 2_000).strip(), "x" * 10_000]
    expected = [reference(text)["input_ids"] for text in texts]
    served_ids = [encoding.ids for encoding in served.encode_batch(texts)]
    differing = [t for t, a, b in zip(texts, expected, served_ids, strict=True) if a != b]
    assert differing == []
    assert len({tuple(ids) for ids in expected}) > (400 if family == "deberta-v2" else 1400)
    served.enable_truncation(512, stride=64)
    cached = WordCache(served, max_tokens=512).encode(texts)
    whole = [packed(encoding.ids) for encoding in served.encode_batch(texts)]
    assert [ids for ids in cached if ids is not None] == [
        ids for ids, known in zip(whole, cached, strict=True) if known is not None
    ]
    if family in ("roberta", "xlm-roberta", "bert", "distilbert"):
        assert sum(ids is not None for ids in cached) > 300


def test_the_bundles_tokenizer_is_read_by_transformers(checkpoints: Path, tmp_path: Path) -> None:
    """Its class takes tokenizer.json as it is, and gives the inputs that the graph has."""
    for family in ("bert", "roberta", "albert"):
        _loaded(checkpoints / family).write(tmp_path, 32)
        read = AutoTokenizer.from_pretrained(tmp_path)
        reference = AutoTokenizer.from_pretrained(checkpoints / family)
        text = SENTENCES[0]
        # transformers 5 leaves out the token types of ALBERT, 0 everywhere.
        assert {"token_type_ids": [0] * 38, **reference(text)} == {
            "token_type_ids": [0] * 38,
            **read(text),
        }
        assert read.model_max_length == 32
        assert read.special_tokens_map == {
            name: token
            for name, token in reference.special_tokens_map.items()
            if name in read.special_tokens_map
        }


def _assert_ids_equal(path: Path, texts: list[str]) -> None:
    made, reference = _loaded(path).tokenizer, AutoTokenizer.from_pretrained(path)
    for text in texts:
        assert made.encode(text).ids == reference(text)["input_ids"], text


@pytest.mark.parametrize(
    "said",
    [
        {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<s>", "</s>"]},
        {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": {"user": "<s>"}},
        {"tokenizer_class": "XLMRobertaTokenizer", "extra_special_tokens": ["<s>"], "unk_id": 0},
        {"tokenizer_class": "TheirOwnTokenizer", "auto_map": {"AutoTokenizer": ["x.py", None]}},
        {},
    ],
)
def test_given_tokenizer_json_is_used_as_it_is(
    copied: Callable[..., Path], said: dict[str, object]
) -> None:
    """A tokenizer.json is what the model was trained with, whatever the class is called."""
    path = copied("xlm-roberta", said, whole=True)
    given = Tokenizer.from_file(str(path / "tokenizer.json"))
    assert _loaded(path).tokenizer.to_str() == given.to_str()


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("bert", {"do_lower_case": False}),
        ("bert", {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}),
        ("bert", {"tokenizer_class": "BertTokenizer"}),
        ("bert", {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False}),
        ("distilbert", {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": False}),
        ("roberta", {"add_prefix_space": True}),
        ("roberta", {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_what_a_class_sets_beside_its_files_is_set(
    copied: Callable[..., Path], family: str, said: dict[str, object], whole: bool
) -> None:
    """Case, accents and a first space follow tokenizer_config.json, also beside a tokenizer.json
    that says otherwise, as in transformers."""
    _assert_ids_equal(copied(family, said, whole=whole), _common(family, 300))


@pytest.mark.parametrize(
    ("model_type", "family", "class_name"),
    [
        ("albert", "bert", "BertTokenizer"),
        ("deberta-v2", "bert", "BertTokenizerFast"),
        ("roberta", "bert", "BertTokenizer"),
        ("roberta", "bert", "ElectraTokenizer"),
        ("bert", "roberta", "RobertaTokenizer"),
        ("bert", "roberta", "RobertaTokenizerFast"),
        ("bert", "albert", "AlbertTokenizer"),
        ("camembert", "xlm-roberta", "XLMRobertaTokenizer"),
    ],
)
def test_the_tokenizer_of_another_architecture_is_made(
    checkpoints: Path, tmp_path: Path, model_type: str, family: str, class_name: str
) -> None:
    """The class that tokenizer_config.json, or else config.json, names decides from which files the
    tokenizer is made, and how; without them, the line names the class."""
    shutil.copytree(checkpoints / family, tmp_path, dirs_exist_ok=True)
    said = json.dumps({"tokenizer_class": class_name})
    config = {"model_type": model_type, "tokenizer_class": class_name}
    (tmp_path / "config.json").write_text(json.dumps(config))
    _assert_ids_equal(tmp_path, _common(family, 300))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "tokenizer_config.json").write_text(said)
    _assert_ids_equal(tmp_path, _common(family, 300))
    for name in ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model"):
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(UserError, match=f"lacks its tokenizer: {class_name} needs tokenizer.json"):
        _loaded(tmp_path)


@pytest.mark.parametrize(
    ("family", "class_names"),
    [
        ("bert", "BertTokenizer BertTokenizerFast ElectraTokenizerFast ConvBertTokenizer"),
        ("bert", "MobileBertTokenizer DistilBertTokenizer PreTrainedTokenizerFast"),
        ("bert", "TokenizersBackend TheirOwnTokenizer"),
        ("albert", "AlbertTokenizer AlbertTokenizerFast"),
        ("deberta", "DebertaTokenizer DebertaTokenizerFast"),
        ("deberta-v2", "DebertaV2Tokenizer DebertaV2TokenizerFast PreTrainedTokenizerFast"),
    ],
)
def test_pairs_have_token_types_where_transformers_sends_some(
    copied: Callable[..., Path], tmp_path: Path, family: str, class_names: str
) -> None:
    """By the class of the tokenizer, or without one, the architecture."""
    copied(family, whole=family != "deberta")  # in 5.24, whose has no types for pairs
    for class_name in (None, *class_names.split()):
        said = json.dumps({"tokenizer_class": class_name})
        (tmp_path / "tokenizer_config.json").write_text(said)
        sent = AutoTokenizer.from_pretrained(tmp_path).model_input_names
        assert _loaded(tmp_path).types_pairs == ("token_type_ids" in sent), class_name


def test_dropout_of_training_cuts_no_text(checkpoints: Path, tmp_path: Path) -> None:
    """A tokenizer.json with BPE's dropout gives a text other ids at each call. Here it does not,
    neither in an export nor in a bundle made elsewhere."""
    shutil.copytree(checkpoints / "roberta", tmp_path, dirs_exist_ok=True)
    given = AutoTokenizer.from_pretrained(checkpoints / "roberta").backend_tokenizer
    texts = _common("roberta", 50)
    expected = [encoding.ids for encoding in given.encode_batch(texts)]
    given.model.dropout = 0.5
    given.save(str(tmp_path / "tokenizer.json"))
    served = InputTokenizer(
        tmp_path,
        max_tokens=512,
        preprocessing="none",
        text_pairs=False,
        has_types=False,
        model="tiny",
        languages=(),
    )
    for tokenizer in (_loaded(tmp_path).tokenizer, served.library):
        assert [encoding.ids for encoding in tokenizer.encode_batch(texts)] == expected


def test_tokens_without_a_row_are_left_out(checkpoints: Path, tmp_path: Path) -> None:
    """Added without resize_token_embeddings, no text could have them; a note names them. Ids of
    the vocabulary itself that have no row are those of another checkpoint."""
    shutil.copytree(checkpoints / "bert", tmp_path, dirs_exist_ok=True)
    grown = AutoTokenizer.from_pretrained(checkpoints / "bert")
    rows = len(grown)
    grown.add_tokens(["covidiot"])
    grown.add_special_tokens({"additional_special_tokens": ["<extra>"]})
    grown.save_pretrained(tmp_path)
    entries = read_config(tmp_path, str(tmp_path))
    kept = load_tokenizer(tmp_path, entries, rows)
    text = "A covidiot <extra> on the pier"
    plain = _loaded(checkpoints / "bert").tokenizer
    assert kept.tokenizer.encode(text).ids == plain.encode(text).ids
    (note,) = kept.notes
    assert note.startswith("warning: covidiot, <extra> of the tokenizer have no row")
    assert load_tokenizer(tmp_path, entries, rows + 2).notes == []
    with pytest.raises(UserError, match="belong to different checkpoints"):
        load_tokenizer(tmp_path, entries, rows - 1)


@pytest.mark.parametrize(
    ("family", "removed", "needed"),
    [
        ("roberta", "merges.txt", "vocab.json with merges.txt, or vocab.txt with bpe.codes"),
        ("deberta", "vocab.json", "vocab.json with merges.txt"),
        ("roberta", "vocab.json", "vocab.json with merges.txt, or vocab.txt with bpe.codes"),
        ("xlm-roberta", "sentencepiece.bpe.model", "sentencepiece.bpe.model"),
        ("bert", "vocab.txt", "vocab.txt"),
        ("distilbert", "vocab.txt", "vocab.txt"),
        ("deberta-v2", "spm.model", "spm.model"),
        ("albert", "spiece.model", "spiece.model"),
    ],
)
def test_missing_files_are_named(
    copied: Callable[..., Path], tmp_path: Path, family: str, removed: str, needed: str
) -> None:
    """Without its tokenizer files a checkpoint is refused in a line that says what would do."""
    (copied(family) / removed).unlink()
    with pytest.raises(UserError) as caught:
        _loaded(tmp_path)
    expected = f"{tmp_path} lacks its tokenizer: {family} needs tokenizer.json, or {needed}; save"
    assert str(caught.value).startswith(expected)


DAMAGE: list[tuple[str, str, Callable[[bytes], bytes]]] = [
    ("roberta", "tokenizer.json", lambda _: b"version https://git-lfs.github.com/spec/v1\n"),
    ("roberta", "vocab.json", lambda whole: whole[:100]),
    ("roberta", "vocab.json", lambda _: b"[]"),
    ("roberta", "merges.txt", lambda _: b"<html><body>not found</body></html>\n"),
    ("roberta", "merges.txt", lambda _: b""),
    ("roberta", "merges.txt", lambda whole: whole[:20] + b"\xff" + whole[20:]),
    ("roberta", "special_tokens_map.json", lambda _: b"[]"),
    ("xlm-roberta", "sentencepiece.bpe.model", lambda whole: whole[:1000]),
    ("xlm-roberta", "sentencepiece.bpe.model", lambda _: b""),
    ("deberta-v2", "spm.model", lambda whole: whole[:1000]),
    ("albert", "spiece.model", lambda _: b"<html>"),
    ("bert", "vocab.txt", lambda _: b""),
    ("bert", "vocab.txt", lambda whole: b"\xff\xfe" + whole),
    ("bert", "tokenizer_config.json", lambda _: b"{"),
]


@pytest.mark.parametrize(("family", "name", "damage"), DAMAGE)
def test_damaged_file_is_named(
    copied: Callable[..., Path], family: str, name: str, damage: Callable[[bytes], bytes]
) -> None:
    """A file that cannot be read, or holds something else, is named in one line."""
    file = copied(family) / name
    file.write_bytes(damage(file.read_bytes() if file.is_file() else b""))
    with pytest.raises(UserError) as caught:
        _loaded(file.parent)
    assert str(caught.value).startswith(f"{file} is damaged: ")
    assert "\n" not in str(caught.value)


def test_tokenizer_without_fast_form_is_refused(copied: Callable[..., Path]) -> None:
    """Japanese BERT cuts texts with a dictionary, for which there is no conversion."""
    with pytest.raises(UserError, match="no fast form"):
        _loaded(copied("bert", {"tokenizer_class": "BertJapaneseTokenizer"}))


def test_a_class_that_is_not_known_is_not_taken_for_another(copied: Callable[..., Path]) -> None:
    """KoBERT's vocab.txt is not for BERT's tokenizer. A tokenizer.json would say how to cut."""
    path = copied("bert", {"tokenizer_class": "KoBertTokenizer"})
    with pytest.raises(
        UserError, match=r"lacks its tokenizer: KoBertTokenizer needs tokenizer\.json;"
    ):
        _loaded(path)


def test_blank_lines_at_the_end_of_a_vocabulary_have_no_ids(copied: Callable[..., Path]) -> None:
    """So the embedding needs no rows for them, as in transformers."""
    path = copied("bert")
    size = _loaded(path).tokenizer.get_vocab_size()
    with (path / "vocab.txt").open("a") as file:
        file.write("\n\n")
    assert _loaded(path).tokenizer.get_vocab_size() == size


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda whole: whole.update(post_processor=None), r"tokenizer\.json has no post-processor"),
        (
            lambda whole: whole["model"].update({"unk_token": "[NONE]"}),
            r"fails on a character .* it needs an unknown token",
        ),
    ],
)
def test_a_tokenizer_json_that_texts_would_fail_on_is_refused(
    copied: Callable[..., Path], change: Callable[[dict[str, Any]], None], says: str
) -> None:
    """Without a post-processor the classifier would read a word instead of a special token;
    without an unknown token, the first text with a character of its own would fail."""
    file = copied("bert", whole=True) / "tokenizer.json"
    whole = json.loads(file.read_text())
    change(whole)
    file.write_text(json.dumps(whole))
    with pytest.raises(UserError, match=says):
        _loaded(file.parent)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("albert", {"do_lower_case": False, "keep_accents": True}),
        ("deberta-v2", {"do_lower_case": True}),
        ("deberta-v2", {"split_by_punct": True}),
        ("deberta-v2", {"add_prefix_space": False}),
        ("mpnet", {"do_lower_case": False}),
    ],
)
def test_settings_of_tokenizer_config_are_followed(
    copied: Callable[..., Path], family: str, settings: dict[str, bool]
) -> None:
    """What tokenizer_config.json says of case, accents and punctuation."""
    texts = [*_common(family, 500), "Cafe\u0301", "Straße", "straße"]
    _assert_ids_equal(copied(family, settings), texts)


def test_a_model_file_without_normalisation_is_followed(tmp_path: Path) -> None:
    """A sentencepiece model without rules of its own changes no form of a letter."""
    name, options = SENTENCEPIECE["deberta-v2"]
    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    sentencepiece(name, SENTENCES, **(LARGE | options | plain))(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    (tmp_path / "added_tokens.json").write_text('{"[MASK]": 280}')
    _assert_ids_of_file(tmp_path, name)
