"""Ops that fvcore takes for free: they shape, copy, compare or select."""

from __future__ import annotations

_NAMES = (
    "__and__", "arange", "bitwise_not", "cat", "chunk", "clamp", "clamp_", "constant_pad_nd", "contiguous", "copy_",
    "detach", "dropout", "empty", "eq", "expand", "flatten", "floor", "floor_divide", "full", "full_like", "gather",
    "ge", "gt", "index", "index_put_", "lift_fresh", "masked_fill", "max", "narrow", "new_empty", "new_full",
    "new_zeros", "nonzero", "ones", "permute", "relu", "relu_", "remainder", "reshape", "roll", "select", "slice",
    "split", "split_with_sizes", "squeeze", "stack", "t", "to", "transpose", "type_as", "unbind", "unsqueeze",
    "unsqueeze_", "view", "zeros", "zeros_like",
)  # fmt: skip
# Marks for a profiler, such as `nn.DataParallel` sets; a trace does not show them.
_MARKS = ("_record_function_enter", "_record_function_enter_new", "_record_function_exit")
IGNORED_OPS = frozenset((*(f"aten::{name}" for name in _NAMES), *(f"profiler::{name}" for name in _MARKS)))
