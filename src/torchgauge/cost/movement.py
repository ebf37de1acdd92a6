"""Ops that move data without arithmetic: copies, new tensors, views, collectives.

A copy reads as much as it writes. A destination that is overwritten is not read.
"""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import argument, qualified, total_bytes
from torchgauge.facts import FREE

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
    "sparse_mask", "_cudnn_rnn_flatten_weight",
)  # fmt: skip
_VIEW_COPIES = (
    "_conj_copy", "_fw_primal_copy", "_indices_copy", "_neg_view_copy", "_reshape_alias_copy", "_reshape_copy",
    "_values_copy", "alias_copy", "as_strided_copy", "ccol_indices_copy", "col_indices_copy", "crow_indices_copy",
    "detach_copy", "diagonal_copy", "expand_copy", "indices_copy", "lift_fresh_copy", "narrow_copy", "permute_copy",
    "row_indices_copy", "select_copy", "slice_copy", "split_copy", "split_with_sizes_copy", "squeeze_copy", "t_copy",
    "transpose_copy", "unbind_copy", "unfold_copy", "unsqueeze_copy", "values_copy", "view_as_complex_copy",
    "view_as_real_copy", "view_copy",
)  # fmt: skip
# These return their input if there is nothing to do; the capture then tags them as views.
_MAYBE_VIEWS = ("contiguous", "to", "type_as", "reshape", "reshape_as", "flatten")


@formula(*qualified(*_MAYBE_VIEWS), category="copy")
def copy_unless_view(call: Call) -> Work:
    return Work(flops=0, bytes_read=0, bytes_written=0) if "view" in call.tags else Work(flops=0)


@formula("aten::copy", category="copy")
def copy_into(call: Call) -> Work:
    source = argument(call, "src", "other")
    return Work(flops=0, bytes_read=getattr(source, "distinct_bytes", 0))


@formula("aten::_copy_from", "aten::_copy_from_and_resize", category="copy")
def copy_from(call: Call) -> Work:
    return Work(flops=0, bytes_read=call["self"].distinct_bytes)


# New tensors: memory that is only reserved is free; what is filled is written, not read. Drawing random numbers is
# integer work, and the transformation to a distribution is not counted.

_RESERVED = (
    "empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized", "new_empty", "new_empty_strided",
    "_empty_affine_quantized", "_empty_per_channel_affine_quantized", "_efficientzerotensor", "resize", "resize_as",
    "_resize_output",
)  # fmt: skip
_FILLED = (
    "zeros", "zeros_like", "new_zeros", "_new_zeros_with_same_feature_meta", "ones", "ones_like", "new_ones", "full",
    "full_like", "new_full", "zero", "eye", "arange", "range", "linspace", "logspace", "scalar_tensor", "tensor",
    "_dim_arange", "bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window",
    "fft_fftfreq", "fft_rfftfreq", "_cudnn_init_dropout_state",
)  # fmt: skip
_RANDOM = (
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "random", "uniform", "normal",
    "normal_functional", "exponential", "geometric", "cauchy", "log_normal", "_philox_normal", "_philox_uniform",
    "_philox_key_split", "_philox_key_fold_in", "_sobol_engine_draw",
)  # fmt: skip


@formula(*qualified(*_FILLED, *_RANDOM), category="allocation")
def fill(call: Call) -> Work:
    return Work(flops=0, bytes_read=0)


@formula("aten::fill", category="allocation")
def fill_value(call: Call) -> Work:
    return Work(flops=0, bytes_read=total_bytes(call.get("value")))


# Free ops: new views of the same memory (also those that torch does not tag as views), and queries of a tensor.

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
    "prim::device", "prim::dtype", "prim::layout", "prim::is_cuda", "profiler::_record_function_enter",
    "profiler::_record_function_enter_new", "profiler::_record_function_exit",
)  # fmt: skip


# Collectives: the bytes this rank reads and writes. The sums of a reduction happen on the way and are not counted.

_COLLECTIVES = (
    *(f"_c10d_functional::{name}" for name in (
        "all_reduce", "all_reduce_coalesced", "all_gather_into_tensor", "all_gather_into_tensor_coalesced",
        "all_gather_into_tensor_out", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
        "reduce_scatter_tensor_out", "all_to_all_single", "broadcast", "isend", "irecv", "batch_p2p_ops",
    )),
    *(f"_c10d_functional_autograd::{name}" for name in (
        "all_gather_into_tensor", "all_to_all_single", "reduce_scatter_tensor",
    )),
    *(f"c10d::{name}" for name in (
        "_allgather_base_", "_reduce_scatter_base_", "allgather_", "allgather_coalesced_",
        "allgather_into_tensor_coalesced_", "allreduce_", "allreduce_coalesced_", "alltoall_", "alltoall_base_",
        "broadcast_", "gather_", "recv_", "recv_any_source_", "reduce_", "reduce_scatter_",
        "reduce_scatter_tensor_coalesced_", "scatter_", "send",
    )),
)  # fmt: skip
_WAITS = (
    "_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd", "c10d::barrier",
    "c10d::monitored_barrier_",
)  # fmt: skip


@formula(*qualified(*_COPIES, *_VIEW_COPIES), category="copy")
@formula(*_COLLECTIVES, category="communication")
def move(call: Call) -> Work:
    return Work(flops=0)


@formula(*qualified(*_RESERVED), category="allocation", status=FREE)
@formula(*qualified(*_VIEWS), category="view", status=FREE)
@formula(*qualified(*_QUESTIONS), category="other", status=FREE)
@formula(*_WAITS, category="communication", status=FREE)
def nothing(call: Call) -> Work:
    return Work(flops=0, bytes_read=0, bytes_written=0)
