"""Free ops: new views of the same memory (those that torch does not tag as such too), and questions about a tensor."""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.facts import FREE

_VIEWS = (
    "detach", "alias", "lift", "lift_fresh", "_unsafe_view", "_reshape_alias", "view", "view_as", "as_strided",
    "expand", "expand_as", "permute", "transpose", "t", "squeeze", "unsqueeze", "select", "slice", "narrow", "split",
    "split_with_sizes", "chunk", "unbind", "diagonal", "unfold", "movedim", "swapaxes", "real", "imag", "_conj",
    "_neg_view", "view_as_real", "view_as_complex", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk",
    "tensor_split", "broadcast_to", "broadcast_tensors", "meshgrid", "numpy_T", "mT", "mH", "adjoint", "_fw_primal",
    "_make_dual", "_mkldnn_reshape", "set", "set_data", "positive", "_values", "_indices", "values", "indices",
    "crow_indices", "col_indices", "_nested_view_from_buffer", "_nested_view_from_jagged", "_nested_get_values",
    "_nested_get_offsets", "_nested_get_lengths", "_nested_get_jagged_dummy", "_nested_get_max_seqlen",
    "_nested_get_min_seqlen", "_test_autograd_multiple_dispatch_view", "_nested_compute_contiguous_strides_offsets",
    "ccol_indices", "row_indices",
    # A sparse tensor holds the values and indices that it is made of.
    "sparse_coo_tensor", "_sparse_coo_tensor_unsafe", "_sparse_coo_tensor_with_dims_and_tensors",
    "sparse_compressed_tensor", "_sparse_compressed_tensor_unsafe", "sparse_csr_tensor", "_sparse_csr_tensor_unsafe",
)  # fmt: skip
_QUESTIONS = (
    "_local_scalar_dense", "item", "size", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "numel", "dim",
    "stride", "storage_offset", "is_same_size", "is_contiguous", "sym_is_contiguous", "is_nonzero", "is_pinned",
    "is_set_to", "is_complex", "is_floating_point", "is_non_overlapping_and_dense", "is_strides_like_format",
    "is_coalesced", "sparse_dim", "dense_dim", "_dimI", "_dimV", "_nnz", "_version", "result_type", "can_cast",
    "_has_same_storage_numel", "_has_compatible_shallow_copy_type", "_is_zerotensor", "_debug_has_internal_overlap",
    "_fused_sdp_choice", "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_functional_assert_async",
    "_functional_assert_scalar", "_linalg_check_errors", "sym_constrain_range", "sym_constrain_range_for_size",
    "_functional_sym_constrain_range", "_functional_sym_constrain_range_for_size", "_make_dep_token", "_print",
    "record_stream", "requires_grad", "retain_grad", "_nested_tensor_size", "_nested_tensor_strides",
    "_nested_tensor_storage_offsets", "_nested_get_ragged_idx", "_nested_tensor_from_mask_left_aligned",
    "_shape_as_tensor", "_use_cudnn_ctc_loss", "_use_miopen_ctc_loss", "cudnn_is_acceptable", "q_scale",
    "q_zero_point", "q_per_channel_scales", "q_per_channel_zero_points", "q_per_channel_axis", "qscheme",
    "_use_cudnn_rnn_flatten_weight", "element_size", "get_device", "is_inference", "is_leaf", "_coalesced",
)  # fmt: skip


@formula(*(f"aten::{name}" for name in _VIEWS), category="view", status=FREE)
def view(call: Call) -> Work:
    return Work(flops=0, bytes_read=0, bytes_written=0)


@formula(
    *(f"aten::{name}" for name in _QUESTIONS), "prim::device", "prim::dtype", "prim::layout", "prim::is_cuda",
    "profiler::_record_function_enter", "profiler::_record_function_enter_new", "profiler::_record_function_exit",
    category="other", status=FREE,
)  # fmt: skip
def question(call: Call) -> Work:
    return Work(flops=0, bytes_read=0, bytes_written=0)
