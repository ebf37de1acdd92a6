"""Copies: what is read is written. A destination that is overwritten is not read."""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import argument

_COPIES = (
    "clone", "_to_copy", "_lazy_clone", "cat", "concat", "concatenate", "stack", "_stack", "hstack", "vstack",
    "dstack", "row_stack", "column_stack", "_chunk_cat", "block_diag", "pin_memory", "_pin_memory", "pad_sequence",
    "_pack_padded_sequence", "_pack_padded_sequence_backward", "_pad_packed_sequence", "resolve_conj", "resolve_neg",
    "flatten_dense_tensors", "to_mkldnn", "to_dense", "_to_dense", "to_mkldnn_backward", "to_dense_backward",
    "mkldnn_reorder_conv2d_weight", "mkldnn_reorder_conv3d_weight", "to_padded_tensor", "nested_to_padded_tensor",
    "_nested_tensor_from_mask", "_nested_from_padded", "_nested_from_padded_and_nested_example",
    "_nested_tensor_from_tensor_list", "_jagged_to_padded_dense_forward", "_padded_dense_to_jagged_forward",
    "_nested_from_padded_tensor", "_nested_select_backward", "_nested_sum_backward", "_list_to_tensor", "lu_unpack",
    "_convert_weight_to_int4pack", "_convert_weight_to_int4pack_for_cpu", "_dyn_quant_pack_4bit_weight", "int_repr",
    "_mkldnn_transpose", "_cast_Float", "_cast_Half", "_cast_Double", "_cast_Long", "_cast_Int", "_conj_physical",
    "conj_physical", "_coalesce", "_to_sparse", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc",
    "sparse_mask",
)  # fmt: skip
_VIEW_COPIES = (
    "_conj_copy", "_fw_primal_copy", "_indices_copy", "_neg_view_copy", "_reshape_alias_copy", "_reshape_copy",
    "_values_copy", "alias_copy", "as_strided_copy", "ccol_indices_copy", "col_indices_copy", "crow_indices_copy",
    "detach_copy", "diagonal_copy", "expand_copy", "indices_copy", "lift_fresh_copy", "narrow_copy", "permute_copy",
    "row_indices_copy", "select_copy", "slice_copy", "split_copy", "split_with_sizes_copy", "squeeze_copy", "t_copy",
    "transpose_copy", "unbind_copy", "unfold_copy", "unsqueeze_copy", "values_copy", "view_as_complex_copy",
    "view_as_real_copy", "view_copy",
)  # fmt: skip
# These return their input where there is nothing to do; the capture tags them as views then.
_MAYBE_VIEWS = ("contiguous", "to", "type_as", "reshape", "reshape_as", "flatten")


@formula(*(f"aten::{name}" for name in (*_COPIES, *_VIEW_COPIES)), category="copy")
def copy(call: Call) -> Work:
    return Work(flops=0)


@formula(*(f"aten::{name}" for name in _MAYBE_VIEWS), category="copy")
def copy_unless_view(call: Call) -> Work:
    return Work(flops=0, bytes_read=0, bytes_written=0) if "view" in call.tags else Work(flops=0)


@formula("aten::copy", category="copy")
def copy_into(call: Call) -> Work:
    source = argument(call, "src", "other")
    return Work(flops=0, bytes_read=getattr(source, "distinct_bytes", 0))


@formula("aten::_copy_from", "aten::_copy_from_and_resize", category="copy")
def copy_from(call: Call) -> Work:
    return Work(flops=0, bytes_read=call["self"].distinct_bytes)
