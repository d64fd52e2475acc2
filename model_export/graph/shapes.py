"""Which values of a graph have an axis of tokens."""

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass


def hidden_states(model: ir.Model) -> dict[ir.Value, int | None]:
    """The computed values [batch, sequence, features], with the number of features if known.

    The size of the batch is unknown before the graph runs. That distinguishes these values from
    tables with three axes, such as DeBERTa's relative positions [1, positions, features].
    """
    ShapeInferencePass()(model)
    states = {
        value: size if isinstance(size := value.shape[2], int) else None
        for node in model.graph
        for value in node.outputs
        if value.shape is not None and len(value.shape) == 3 and not isinstance(value.shape[0], int)
    }
    forget_shapes(model)
    return states


def forget_shapes(model: ir.Model) -> None:
    """Clear what was inferred, because a pass makes it wrong."""
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = value.type = None
