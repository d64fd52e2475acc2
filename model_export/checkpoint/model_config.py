"""The config of a checkpoint as an object of transformers.

It is apart from ``config.py``, because whoever only looks for a checkpoint need not load PyTorch.
"""

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING


def model_config(entries: Mapping[str, Any]) -> Any:
    """The object of transformers for these entries, which are checked.

    Its own reader would open the file again, and takes no byte order mark.
    """
    return CONFIG_MAPPING[entries["model_type"]].from_dict(dict(entries))
