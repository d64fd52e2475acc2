"""Reads and checks config.json, before weights are downloaded or a model is built from it."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentiment_service.errors import UserError

from sentiment_export.checkpoint.architectures import find_architecture, rows_after_padding
from sentiment_export.checkpoint.layout import CONFIG_FILE, read_json

# What changes the computation in a way that the export does not follow, and the one value that
# does not: causal attention, layers with fewer heads than the others.
_FIXED: dict[str, object] = {"is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}
# The entries that the architectures compute with ...
_READ = """
activation attention_bias attention_type block_size chunk_size_feed_forward classifier_activation
classifier_bias classifier_pooling conv_act conv_groups conv_kernel_size dim embedding_size
global_attn_every_n_layers global_rope_theta hidden_act hidden_activation hidden_dim hidden_size
id2label inner_group_num intermediate_size is_encoder_decoder label2id layer_norm_eps legacy
local_attention local_rope_theta max_position_embeddings max_relative_positions mlp_bias model_type
n_heads n_layers norm_bias norm_eps norm_rel_ebd num_attention_heads num_hidden_groups
num_hidden_layers num_labels num_random_blocks pad_token_id pooler_hidden_act pooler_hidden_size
pos_att_type position_biased_input position_buckets position_embedding_type problem_type
relative_attention relative_attention_num_buckets rescale_embeddings share_att_key
sinusoidal_pos_embds summary_activation summary_type summary_use_proj type_vocab_size use_bias
vocab_size
"""
# ... and others that change no logit: of training, of other tasks, of files, of text generation.
_HARMLESS = """
adapters architectures attention_dropout attention_head_size attention_probs_dropout_prob auto_map
bad_words_ids begin_suppress_tokens bos_token_id classifier_dropout classifier_dropout_prob
cls_token_id cross_attention_hidden_size custom_pipelines decoder_bias decoder_start_token_id
deterministic_flash_attn directionality diversity_penalty do_sample down_scale_factor dropout dtype
early_stopping embedding_dropout encoder_no_repeat_ngram_size eos_token_id
exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id gap_size
gradient_checkpointing has_no_defaults_at_init hidden_dropout_prob initializer_cutoff_factor
initializer_range language length_penalty mask_token_id max_length min_length mlp_dropout
model_max_length net_structure_type no_repeat_ngram_size num_beam_groups num_beams
num_memory_blocks num_return_sequences output_attentions output_hidden_states output_past
output_scores pooler_dropout pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
pooler_size_per_head pooler_type prefix preprocessing prunable_heads qa_dropout
quantization_config reference_compile remove_invalid_values repad_logits_with_grad
repetition_penalty return_dict return_dict_in_generate sentence_transformers sep_token_id
seq_classif_dropout sparse_pred_ignore_index sparse_prediction summary_last_dropout
suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder tie_weights_
tie_word_embeddings tokenizer_class top_k top_p torch_dtype torchscript transformers_version
typical_p unk_token_id use_bfloat16 use_cache
"""
_KNOWN = {*_READ.split(), *_HARMLESS.split(), *_FIXED}
# Up to this version, transformers ignored every entry that is not known here, and so does whoever
# loads what it wrote. What newer versions write may mean something.
_UNDERSTOOD = (4, 57)
# Of ModernBERT: the kinds of its layers, and the entry for the rotation of each, with its default.
_ROPE = {
    "full_attention": ("global_rope_theta", 160_000.0),
    "sliding_attention": ("local_rope_theta", 10_000.0),
}


def read_config(directory: Path, where: str, *, of_graph: bool = False) -> dict[str, Any]:
    """The entries of the config.json in ``directory``, checked. Errors name ``where``.

    What transformers 5 spells in a way of its own is spelled as in transformers 4. If it is that
    ``of_graph``, only what texts and logits mean is read: the graph says what is computed.

    Raises:
        UserError: the file cannot be read, its architecture is not exported, or an entry makes
            it compute what no export does, or may do so.
    """
    config = read_json(directory / CONFIG_FILE)
    find_architecture(config.get("model_type"), where)
    if of_graph:
        config = {n: v for n, v in config.items() if n not in {*_FIXED, "quantization_config"}}
    _check_entries(config, where)
    if of_graph:
        return config
    if config["model_type"] == "modernbert":
        config |= _layers_of_modernbert(config, where)
    _check_unknown(config, where)
    return config


def model_config(entries: Mapping[str, Any]) -> Any:
    """The config of transformers that has these entries, which are checked.

    Its own reader would open the file again, and takes no byte order mark.
    """
    from transformers import CONFIG_MAPPING  # only where a model or a tokenizer is made

    return CONFIG_MAPPING[entries["model_type"]].from_dict(dict(entries))


def check_task(config: Mapping[str, Any], where: str) -> None:
    """Check that the config is that of a sequence classifier in floating point.

    Raises:
        UserError: the model was made for another task, or its weights are quantized.
    """
    classes = config.get("architectures") or ()
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        raise _wrong(where, "architectures", classes, "a list of class names")
    other = [name for name in classes if "SequenceClassification" not in name]
    if other:
        raise UserError(
            f"{where} is a {other[0]}, not a sequence classifier: fine-tune it first, or give "
            "the checkpoint of a classifier"
        )
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
    version = re.match(r"(\d+)\.(\d+)", str(config.get("transformers_version")))
    if version and (int(version[1]), int(version[2])) <= _UNDERSTOOD:
        return
    for name, value in config.items():
        if name not in _KNOWN and value is not None and not name.startswith("_"):
            raise UserError(
                f"{where}: this exporter does not know the entry {name} of config.json, so the "
                "model may compute otherwise than its export; if no logit depends on it, remove it"
            )


def _layers_of_modernbert(config: dict[str, Any], where: str) -> dict[str, Any]:
    """What ``layer_types``, ``rope_parameters`` and ``sliding_window`` say, as version 4 says it.

    They are taken out of ``config``. Where both spellings are, transformers 5 reads these.
    """
    said: dict[str, Any] = {}
    kinds, rope = config.pop("layer_types", None), config.pop("rope_parameters", None)
    if (window := config.pop("sliding_window", None)) is not None:
        if type(window) is not int:
            raise _wrong(where, "sliding_window", window, "a number of tokens")
        said["local_attention"] = 2 * window
    if kinds is not None:
        full, sliding = _ROPE
        layers = range(len(kinds) if isinstance(kinds, list) else 0)
        periods = (n for n in layers if kinds == [sliding if i % (n + 1) else full for i in layers])
        period = next(periods, None)
        if period is None or len(layers) != config.get("num_hidden_layers", 22):
            accepted = f"{full} for layer 0 and each nth after it, {sliding} for the other layers"
            raise _wrong(where, "layer_types", kinds, accepted)
        said["global_attn_every_n_layers"] = period + 1
    if rope is not None:
        form = '{KIND: {"rope_type": "default", "rope_theta": NUMBER}} for ' + " and ".join(_ROPE)
        if not isinstance(rope, dict) or not set(rope) <= set(_ROPE):
            raise _wrong(where, "rope_parameters", rope, form)
        for kind, (name, default) in _ROPE.items():
            one = {"rope_type": "default", "rope_theta": config.get(name, default)}
            one |= rope.get(kind) or {}
            theta = one.pop("rope_theta")
            if one != {"rope_type": "default"} or type(theta) not in (int, float) or theta <= 0:
                raise _wrong(where, f"{kind} in rope_parameters", rope[kind], form)
            said[name] = theta
    return said


def _wrong(where: str, name: str, value: object, accepted: str) -> UserError:
    text = json.dumps(value, default=str)
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return UserError(f"{where}: {name} in config.json is {shown}; it must be {accepted}")
