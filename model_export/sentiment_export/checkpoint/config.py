"""Reads config.json, and checks it before weights are downloaded or a model is built from it.

Its labels are spelled as the service does.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sentiment_service.errors import UserError

from sentiment_export.checkpoint.architectures import find_architecture, rows_after_padding
from sentiment_export.checkpoint.layout import CONFIG_FILE, read_json

# What changes the computation in a way that the export does not follow, and the one value that
# does not: causal attention, layers with fewer heads than the others.
_FIXED: dict[str, object] = {"is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}
# The entries that the architectures compute with, and those that change no logit: of training, of
# other tasks, of files, of text generation.
_KNOWN = """
activation adapters architectures attention_bias attention_dropout attention_head_size
attention_probs_dropout_prob attention_type auto_map bad_words_ids begin_suppress_tokens block_size
bos_token_id chunk_size_feed_forward classifier_activation classifier_bias classifier_dropout
classifier_dropout_prob classifier_pooling cls_token_id conv_act conv_groups conv_kernel_size
cross_attention_hidden_size custom_pipelines decoder_bias decoder_start_token_id
deterministic_flash_attn dim directionality diversity_penalty do_sample down_scale_factor dropout
dtype early_stopping embedding_dropout embedding_size encoder_no_repeat_ngram_size eos_token_id
eos_token_ids exponential_decay_length_penalty finetuning_task forced_bos_token_id
forced_eos_token_id gap_size global_attn_every_n_layers global_rope_theta gradient_checkpointing
has_no_defaults_at_init hidden_act hidden_activation hidden_dim hidden_dropout_prob hidden_size
id2label initializer_cutoff_factor initializer_range inner_group_num intermediate_size
is_encoder_decoder label2id language layer_norm_eps legacy length_penalty local_attention
local_rope_theta mask_token_id max_length max_position_embeddings max_relative_positions min_length
mlp_bias mlp_dropout model_max_length model_type n_heads n_layers net_structure_type
no_repeat_ngram_size norm_bias norm_eps norm_rel_ebd num_attention_heads num_beam_groups num_beams
num_hidden_groups num_hidden_layers num_labels num_memory_blocks num_random_blocks
num_return_sequences output_attentions output_hidden_states output_past output_scores pad_token_id
pooler_dropout pooler_fc_size pooler_hidden_act pooler_hidden_size pooler_num_attention_heads
pooler_num_fc_layers pooler_size_per_head pooler_type pos_att_type position_biased_input
position_buckets position_embedding_type prefix preprocessing problem_type prunable_heads qa_dropout
quantization_config reference_compile relative_attention relative_attention_num_buckets
remove_invalid_values repad_logits_with_grad repetition_penalty rescale_embeddings return_dict
return_dict_in_generate sentence_transformers sep_token_id seq_classif_dropout share_att_key
sinusoidal_pos_embds sparse_pred_ignore_index sparse_prediction summary_activation
summary_last_dropout summary_type summary_use_proj suppress_tokens task_specific_params temperature
tf_legacy_loss tie_encoder_decoder tie_weights_ tie_word_embeddings tokenizer_class top_k top_p
torch_dtype torchscript transformers_version type_vocab_size typical_p unk_token_id use_bfloat16
use_bias use_cache vocab_size xla_device
"""
# The classes of encoders alone and of other tasks. What else is in "architectures" is the class in
# which somebody trained a classifier; transformers does not ask for it either.
_OTHER_TASKS = re.compile(
    "((?<!SequenceClassification)Model|For(CausalLM|MaskedLM|MultipleChoice|NextSentencePrediction"
    "|PreTraining|QuestionAnswering|TokenClassification))$"
)
# Up to this version, transformers ignored every entry that is not known here, and so does whoever
# loads what it wrote. What newer versions write may mean something.
_UNDERSTOOD = (4, 57)
# How transformers 5 writes what these had names of their own for.
_OF_MODERNBERT = {"layer_types", "rope_parameters", "sliding_window"}
# Kinds of rotations that are the same for texts of all lengths; a traced graph has one.
_ROTATIONS = ("default", "linear")


def read_config(directory: Path, where: str, *, of_graph: bool = False) -> dict[str, Any]:
    """The entries of the config.json in ``directory``, checked. Errors name ``where``.

    If it is that ``of_graph``, only what texts and logits mean is read: the graph says what is
    computed.
    """
    config = read_json(directory / CONFIG_FILE)
    find_architecture(config.get("model_type"), where, of_graph=of_graph)
    if of_graph:  # of which these say nothing
        unsaid = {*_FIXED, "auto_map", "quantization_config"}
        config = {name: value for name, value in config.items() if name not in unsaid}
    _check_entries(config, where)
    if not of_graph:
        _check_unknown(config, where)
        _check_rotations(config.get("rope_parameters"), where)
    return config


def model_config(entries: Mapping[str, Any]) -> Any:
    """The config of transformers that has these entries, which are checked.

    What a model gives beside its logits, and whether in a tuple, is not the entries' to say.
    """
    from transformers import CONFIG_MAPPING  # only where a model or a tokenizer is made

    outputs = {"return_dict": True, "output_hidden_states": False, "output_attentions": False}
    return CONFIG_MAPPING[entries["model_type"]].from_dict({**entries, **outputs})


def check_task(config: Mapping[str, Any], where: str) -> None:
    """Check that the config is that of a sequence classifier in floating point."""
    classes = config.get("architectures") or ()
    other = [name for name in classes if _OTHER_TASKS.search(name)]
    if other:
        raise UserError(
            f"{where} is a {other[0]}, not a sequence classifier: fine-tune it first, or give "
            "the checkpoint of a classifier"
        )
    check_not_quantized(config, where)


def check_not_quantized(config: Mapping[str, Any], where: str) -> None:
    if quantization := config.get("quantization_config"):
        given = quantization.get("quant_method") if isinstance(quantization, dict) else None
        method = given if isinstance(given, str) else "by an unknown method"
        raise UserError(
            f"{where} is quantized ({method[:40]}), and its floating-point weights are lost: give "
            "the checkpoint that it was made from; the export makes its own int8"
        )


def _check_entries(config: dict[str, Any], where: str) -> None:
    """Check what transformers takes and the graph cannot have; it refuses the rest itself."""
    for name, value in _FIXED.items():
        if config.get(name) and config[name] != value:
            accepted = f"{json.dumps(value)}, as in an encoder whose layers are all alike"
            raise _wrong(where, name, config[name], accepted)
    padding, rows = config.get("pad_token_id", 0), config.get("vocab_size")
    counted = find_architecture(config["model_type"], where).max_tokens is rows_after_padding
    if padding is None and not counted:
        # Nothing is computed from it: a padded place is masked, whatever its id is.
        padding = config["pad_token_id"] = 0
    if type(padding) is not int or not 0 <= padding < (rows if type(rows) is int else math.inf):
        why = ", because positions are counted from it; in its published checkpoints it is 1"
        accepted = f"an id below vocab_size, which is {rows}{why if padding is None else ''}"
        raise _wrong(where, "pad_token_id", padding, accepted)


def _check_unknown(config: Mapping[str, Any], where: str) -> None:
    """Check that each entry is known, or that transformers itself ignores it."""
    written = config.get("transformers_version") or "4.0"  # newer versions write theirs
    version = re.match(r"(\d+)\.(\d+)", str(written))
    if version and (int(version[1]), int(version[2])) <= _UNDERSTOOD:
        return
    known = {*_KNOWN.split(), *_FIXED}
    if config["model_type"] == "modernbert":
        known |= _OF_MODERNBERT
    unknown = [
        name
        for name, value in config.items()
        if name not in known and value is not None and not name.startswith("_")
    ]
    if unknown:
        raise UserError(
            f"{where}: this exporter does not know {', '.join(unknown)} in config.json, so the "
            "model may compute otherwise than its export; if no logit depends on it, give a "
            "directory with a copy of the model's files, and remove it there from config.json"
        )


def _check_rotations(rotations: Any, where: str) -> None:
    """Check those of ModernBERT's layers, by kind; transformers refuses other forms itself."""
    for kind, rotation in rotations.items() if isinstance(rotations, dict) else ():
        if isinstance(rotation, dict) and rotation.get("rope_type", "default") not in _ROTATIONS:
            accepted = "a rope_type that does not depend on the length of the text: default, linear"
            raise _wrong(where, f"{kind} in rope_parameters", rotation, accepted)


def _wrong(where: str, name: str, value: object, accepted: str) -> UserError:
    text = json.dumps(value, default=str)
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return UserError(f"{where}: {name} in config.json is {shown}; it must be {accepted}")


SPELLINGS = {
    "negative": {"negative", "neg"},
    "neutral": {"neutral", "neu"},
    "positive": {"positive", "pos"},
}
SENTIMENTS = list(SPELLINGS)
SINGLE_LABEL, MULTI_LABEL = "single_label_classification", "multi_label_classification"
PROBLEM_TYPES = (SINGLE_LABEL, MULTI_LABEL, "regression")


def read_labels(config: Mapping[str, Any], where: str, named: Sequence[str] = ()) -> list[str]:
    """The label of each output as config.json spells it, or as ``named`` (``--labels``) says."""
    names = output_names(config, where)
    _check_head(config.get("problem_type"), len(names), where)
    numbered = sorted(names) == list(range(len(names)))
    if named:
        if numbered and len(named) != len(names):
            raise UserError(
                f"{where} has {len(names)} outputs: give as many different labels to --labels"
            )
        _check_names(named, f"--labels for {where}")
        return list(named)
    if not numbered:
        ids = ", ".join(map(str, sorted(names)[:10]))
        raise UserError(
            f"{where}: id2label in config.json has the ids {ids}; they must be 0, 1, 2 and so on, "
            "without gaps: name all outputs with --labels"
        )
    return _check_names([names[index] for index in range(len(names))], where)


def canonical_labels(labels: list[str]) -> list[str]:
    """Sentiments as ``negative``, ``neutral`` and ``positive``; other labels as they are."""
    sentiments = [
        next((name for name in SENTIMENTS if label.lower() in SPELLINGS[name]), "")
        for label in labels
    ]
    distinct = len(set(sentiments)) == len(sentiments)
    if distinct and {"negative", "positive"} <= set(sentiments) <= set(SENTIMENTS):
        return sentiments
    return labels


def is_numbered(labels: Sequence[str]) -> bool:
    """Whether the labels are ``LABEL_0``, ``LABEL_1`` and so on: transformers' word for no name."""
    return [label.upper() for label in labels] == [f"LABEL_{n}" for n in range(len(labels))]


def known_spellings(labels: Sequence[str]) -> dict[str, str]:
    """Every spelling in which labelled files may write ``labels``, and the label that it means.

    Spellings are in lower case, without spaces at their ends: the labels themselves, ``label_0``
    and so on by position, and for a sentiment its other spellings. A spelling that could mean two
    labels is left out.
    """
    meanings: dict[str, set[str]] = {}
    for index, label in enumerate(labels):
        lower = label.strip().lower()
        group = next((words for words in SPELLINGS.values() if lower in words), {lower})
        for spelling in {*group, f"label_{index}"}:
            meanings.setdefault(spelling, set()).add(label)
    return {spelling: next(iter(names)) for spelling, names in meanings.items() if len(names) == 1}


def output_names(config: Mapping[str, Any], where: str) -> dict[int, Any]:
    """What config.json calls each output, by id: anything; ``LABEL_0`` and so on by default."""
    entry, count = config.get("id2label"), config.get("num_labels")
    # Up to version 2.5, transformers named two outputs of models that have more.
    more = isinstance(entry, dict) and isinstance(count, int) and count > len(entry)
    if entry is None or more:
        entry = {
            index: f"LABEL_{index}" for index in range(count if type(count) is int and count else 2)
        }
    try:
        names = {int(index): name for index, name in entry.items()}
    except (AttributeError, TypeError, ValueError):
        names = {}
    if not names or len(names) != len(entry):  # "0" and "00" are one id
        raise UserError(
            f"{where}: id2label in config.json must be an object from ids to labels, such as "
            '{"0": "negative", "1": "positive"}'
        )
    problem_type = config.get("problem_type")
    if problem_type is not None and problem_type not in PROBLEM_TYPES:
        raise UserError(
            f"{where}: problem_type in config.json is {problem_type!r}; it must be one of "
            f"{', '.join(PROBLEM_TYPES)}"
        )
    return names


def _check_head(problem_type: str | None, outputs: int, where: str) -> None:
    """Check that the outputs are classes, or labels with a probability each."""
    if problem_type == "regression":
        raise UserError(
            f"{where} is a regression (problem_type in config.json): its outputs are quantities, "
            "not classes; give the checkpoint of a classifier"
        )
    if outputs == 1 and problem_type != MULTI_LABEL:
        raise UserError(
            f"{where} has one output, and config.json does not say that it is a probability: it "
            "is probably a regression, which cannot be served. If it was trained with a sigmoid "
            f"(binary cross-entropy), give --multi-label"
        )


def _check_names(labels: Sequence[Any], where: str) -> list[str]:
    """The labels as strings; numbers become their digits."""
    names = [str(label) if type(label) is int else label for label in labels]
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or re.search(r"[\t\r\n]", name):
            raise UserError(
                f"{where}: the label of output {index} is {name!r:.40}; it must be a name of one "
                "line without tabs: name all outputs with --labels"
            )
        if first.setdefault(name, index) != index:
            raise UserError(
                f"{where}: the outputs {first[name]} and {index} are both called "
                f"{name!r}: give each output a name of its own with --labels"
            )
    return names
