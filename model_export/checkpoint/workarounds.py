"""Changes to a loaded model without which Optimum exports it wrongly or not at all.

None of them changes the logits of a text that is short enough for the model. One function each,
with the fault that it avoids.
"""

from typing import Any

import torch

# Architectures whose exported graph has token types as an input.
_TYPED = ("albert", "bert", "deberta", "deberta-v2", "electra")


def prepare_for_export(model: Any) -> None:
    """Apply every workaround that the model needs, after its weights have been loaded."""
    if model.config.model_type == "big_bird":
        _attend_to_all_tokens(model)
    if model.config.model_type in _TYPED and model.config.type_vocab_size == 1:
        _add_token_type(model)


def _attend_to_all_tokens(model: Any) -> None:
    """Use full attention in BigBird, as it does itself up to ``architectures.full_attention``.

    Its sparse attention chooses blocks at random and by the length of the traced text, so the
    exported graph would be right for that text only.
    """
    model.base_model.set_attention_type("original_full")


def _add_token_type(model: Any) -> None:
    """Give the table of token types a second row, which no single text uses.

    Optimum traces the model with token types 0 and 1, which fails in a table of one row.
    """
    table = model.base_model.embeddings.token_type_embeddings
    table.weight = torch.nn.Parameter(table.weight.detach().repeat(2, 1))
    table.num_embeddings = model.config.type_vocab_size = 2
