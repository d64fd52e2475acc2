"""What PackedMultiHeadAttention computes, as a function of ONNX's own operators.

ONNX Runtime has that operator on CUDA only. On the CPU, this function takes its place, so a graph
for GPUs can be compared with PyTorch on every machine. ``packed`` is [tokens, heads, 3, width] and
``bias`` [3 * heads * width]. Scores and softmax are float32. Padding gets the values of another
token, and is masked.
"""

import onnx
import onnx_ir as ir
from sentiment_service.engine.model.flat import REFERENCE

DOMAIN = "com.microsoft"
FUNCTION = f"""
<opset_import: ["" : 18], domain: "{DOMAIN}">
{REFERENCE.decode()} <num_heads>
(packed, key, value, bias, token_offset, cumulative_lengths) => (context) {{
  zero = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  three = Constant <value_ints = [3]> ()
  last = Constant <value_ints = [-1]> ()
  after_texts = Constant <value_ints = [1, 2, 3]> ()
  heads = Shape <start = 1, end = 2> (packed)
  width = Shape <start = 3> (packed)
  kinds_heads_width = Concat <axis = 0> (three, heads, width)
  bias_by_kind = Reshape (bias, kinds_heads_width)
  bias_by_head = Transpose <perm = [1, 0, 2]> (bias_by_kind)
  biased = Add (packed, bias_by_head)
  lengths_so_far = Cast <to = 7> (cumulative_lengths)
  texts_and_one = Shape (lengths_so_far)
  starts = Slice (lengths_so_far, zero, last)
  ends = Slice (lengths_so_far, one, texts_and_one)
  lengths = Sub (ends, starts)
  longest = Shape <start = 1> (token_offset)
  end = Squeeze (longest)
  begin = Constant <value_int = 0> ()
  step = Constant <value_int = 1> ()
  places = Range (begin, end, step)
  start_of_text = Unsqueeze (starts, one)
  row_or_later = Add (start_of_text, places)
  tokens = Shape <end = 1> (packed)
  last_row = Sub (tokens, one)
  rows = Min (row_or_later, last_row)
  padded = Gather (biased, rows)
  by_kind = Transpose <perm = [3, 0, 2, 1, 4]> (padded)
  q, k, v = Split <num_outputs = 3> (by_kind)
  k_across = Transpose <perm = [0, 1, 2, 4, 3]> (k)
  products = MatMul (q, k_across)
  exact_products = Cast <to = 1> (products)
  exact_width = Cast <to = 1> (width)
  divisor = Sqrt (exact_width)
  scores = Div (exact_products, divisor)
  length_of_text = Unsqueeze (lengths, after_texts)
  is_token = Less (places, length_of_text)
  lowest = Constant <value_float = -3.4e38> ()
  masked = Where (is_token, scores, lowest)
  exact_weights = Softmax <axis = -1> (masked)
  weights = CastLike (exact_weights, v)
  by_head = MatMul (weights, v)
  by_token = Transpose <perm = [0, 1, 3, 2, 4]> (by_head)
  hidden = Mul (heads, width)
  row_of_hidden = Concat <axis = 0> (last, hidden)
  all_rows = Reshape (by_token, row_of_hidden)
  all_places = Reshape (token_offset, last)
  real_places = Slice (all_places, zero, tokens)
  context = Gather (all_rows, real_places)
}}
"""


def reference_attention() -> ir.Function:
    """The function, for a model that has the operator."""
    return ir.serde.deserialize_function(onnx.parser.parse_function(FUNCTION))
