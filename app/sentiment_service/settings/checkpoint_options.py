"""What a checkpoint does not say itself: options of the export, and of all that exports first."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import NoDecode

from sentiment_service.engine.text.options import Preprocessing
from sentiment_service.errors import UserError


def _label_names(value: Any) -> Any:
    """The names between the commas; none, where nothing is given."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",")) if value else ()
    return value


class CheckpointOptions(BaseModel):
    """How to read a checkpoint. A default means: as the checkpoint itself, or its name, says."""

    model_config = ConfigDict(frozen=True)

    labels: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_label_names)] = Field(
        default=(),
        description="for a checkpoint: names of its outputs in logit order, separated by ',' "
        "[default: those of config.json, or of a known checkpoint]",
    )
    preprocessing: Literal["auto", Preprocessing] = Field(
        default="auto",
        description="for a checkpoint: how texts are normalised; auto means: as the checkpoint was "
        "trained, if it or its name tells",
    )
    multi_label: bool | None = Field(
        default=None,
        description="for a checkpoint: a text can have several labels, so that each score is a "
        "sigmoid of its own [default: problem_type in config.json]",
    )
    text_pairs: bool = Field(
        default=False,
        description="for a checkpoint: it was trained on pairs of texts, such as a review and one "
        "aspect of it",
    )
    max_tokens: int = Field(
        default=0,
        ge=0,
        description="for a checkpoint: cut texts to this many tokens; 0 means: as many as it has "
        "positions for",
    )

    onnx: str = Field(
        default="",
        description="for a directory or repository with ONNX graphs: which file to export, such as "
        "onnx/model_quantized.onnx, also where there are weights [default: the fp32 one]",
    )

    def checkpoint_flags(self) -> list[str]:
        """The options that differ from their defaults, as flags of a command line."""
        words: list[str] = []
        if self.labels:
            words += ["--labels", ",".join(self.labels)]
        if self.preprocessing != "auto":
            words += ["--preprocessing", self.preprocessing]
        if self.multi_label is not None:
            words.append("--multi-label" if self.multi_label else "--single-label")
        if self.text_pairs:
            words.append("--text-pairs")
        if self.max_tokens:
            words += ["--max-tokens", str(self.max_tokens)]
        if self.onnx:
            words += ["--onnx", self.onnx]
        return words

    def refuse_bundle(self, name: str) -> None:
        """Return if there are no options: what they say is decided in a bundle.

        Raises:
            UserError: there are; the bundle is called ``name``.
        """
        if words := [word for word in self.checkpoint_flags() if word.startswith("--")]:
            raise UserError(
                f"{name} is a bundle, and {', '.join(words)} cannot change it: give its checkpoint"
            )


AS_IT_SAYS = CheckpointOptions()
