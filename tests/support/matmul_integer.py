"""The bytes of the ONNX model y = MatMulInteger(a: uint8 [m, k], b: int8 [k, n])."""

from onnx import TensorProto, helper

_A, _B, _Y = (
    helper.make_tensor_value_info(name, kind, [None, None])
    for name, kind in (("a", TensorProto.UINT8), ("b", TensorProto.INT8), ("y", TensorProto.INT32))
)
_GRAPH = helper.make_graph(
    [helper.make_node("MatMulInteger", ["a", "b"], ["y"])], "p", [_A, _B], [_Y]
)
MATMUL_INTEGER = helper.make_model(
    _GRAPH, opset_imports=[helper.make_opsetid("", 18)], ir_version=8
).SerializeToString()
