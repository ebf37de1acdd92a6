"""Gathering and scattering, sorting, embeddings: the bytes are those of the elements touched, not of whole tensors.

A gather reads its indices and as many elements as it returns. A scatter in place reads indices and source and writes
the elements they name (reading them too where it accumulates); out of place it also copies the rest. Elements chosen
by a boolean mask are as many as the result or the source has; if neither is known, all.
"""

from __future__ import annotations

from math import prod

from torchgauge.cost.registry import Call, Work, formula, written_bytes
from torchgauge.cost.work import argument, arithmetic, extent, is_in_place, per_input, per_output, total_bytes
from torchgauge.facts import TensorSpec, tensor_specs

_PLACED = (
    "masked_fill", "masked_scatter", "masked_scatter_backward", "masked_select_backward", "flip", "fliplr", "flipud",
    "roll", "rot90", "repeat", "repeat_interleave", "tile", "tril", "triu", "diag", "diag_embed", "diagflat",
    "diagonal_backward", "select_backward", "slice_backward", "select_scatter", "slice_scatter", "diagonal_scatter",
    "as_strided_scatter", "index_select_backward", "one_hot", "channel_shuffle", "native_channel_shuffle",
    "tril_indices", "triu_indices", "combinations", "cartesian_prod",
)  # fmt: skip
per_output("indexing", dict.fromkeys(_PLACED, 0))
# Looking for non-zeros compares every element; the gradient of overlapping windows is summed.
per_input("indexing", {"nonzero nonzero_static argwhere nonzero_numpy unfold_backward": 1})


@formula(
    "aten::gather", "aten::take", "aten::take_along_dim", "aten::index_select", "aten::index", "aten::_unsafe_index",
    "aten::_unsafe_masked_index", "aten::masked_select", category="indexing",
)  # fmt: skip
def gather(call: Call) -> Work:
    index_bytes = total_bytes([argument(call, "index", "indices"), call.get("mask")])
    return Work(flops=0, bytes_read=index_bytes + min(call.out.nbytes, call["self"].distinct_bytes))


@formula("aten::scatter", "aten::scatter_add", "aten::scatter_reduce", category="indexing")
def scatter(call: Call) -> Work:
    accumulates = call.op.startswith("aten::scatter_add") or call.get("reduce") is not None
    touched = call["index"].numel
    source = touched * call["src"].itemsize if call.get("src") is not None else 0
    return _scattered(call, touched, total_bytes(call["index"]) + source, accumulates)


@formula("aten::index_add", "aten::index_reduce", "aten::index_copy", category="indexing")
def index_add(call: Call) -> Work:
    source, accumulates = call["source"], not call.op.startswith("aten::index_copy")
    work = _scattered(call, source.numel, total_bytes([call["index"], source]), accumulates)
    is_scaled = call.get("alpha", 1) != 1
    return work._replace(flops=(work.flops or 0) * (1 + is_scaled))


@formula("aten::put", category="indexing")
def put(call: Call) -> Work:
    read = total_bytes([call["index"], call["source"]])
    return _scattered(call, call["index"].numel, read, bool(call.get("accumulate")))


@formula("aten::index_fill", category="indexing")
def index_fill(call: Call) -> Work:
    target, chosen = call["self"], call["index"].numel
    touched = target.numel // max(target.shape[call["dim"]], 1) * chosen if target.shape else 1
    return _scattered(call, touched, total_bytes(call["index"]), accumulates=False)


@formula(
    "aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index_put",
    "aten::_unsafe_masked_index_put_accumulate", category="indexing",
)  # fmt: skip
def index_put(call: Call) -> Work:
    target, values, indices = call["self"], call["values"], list(call["indices"])
    if any(isinstance(item, TensorSpec) and item.dtype in ("bool", "uint8") for item in indices):
        touched = int(values.numel if values.numel > 1 else target.numel)
    else:
        specs = tuple(tensor_specs(indices))
        rank = max((len(spec.shape) for spec in specs), default=0)
        padded = [(1,) * (rank - len(spec.shape)) + spec.shape for spec in specs]
        broadcast = [max(sizes) for sizes in zip(*padded, strict=True)]
        kept = [size for size, item in zip(target.shape, indices, strict=False) if item is None]
        touched = prod([*broadcast, *kept, *target.shape[len(indices) :]])
    accumulates = bool(call.get("accumulate")) or call.op.endswith("_accumulate")
    return _scattered(call, touched, total_bytes([indices, values, call.get("mask")]), accumulates)


@formula("aten::fill_diagonal", category="indexing")
def fill_diagonal(call: Call) -> Work:
    return Work(flops=0, bytes_read=0, bytes_written=min(call["self"].shape) * call["self"].itemsize)


def _scattered(call: Call, touched: int, read: int, accumulates: bool) -> Work:
    target = call["self"]
    touched_bytes = min(touched * target.itemsize, target.distinct_bytes)
    flops = touched if accumulates and call.is_arithmetic else 0
    if is_in_place(call):
        return Work(flops=flops, bytes_read=read + accumulates * touched_bytes, bytes_written=touched_bytes)
    return Work(flops=flops, bytes_read=read + target.distinct_bytes, bytes_written=written_bytes(call))


# Sorting and searching, in comparisons (flops if the values are floating-point):
#     sort, unique       ⌈log₂ n⌉ per element of a row of n
#     topk               ⌈log₂ k⌉ per element, at least 1: a heap of the k best
#     kthvalue, median   2 per element: the expected cost of selection by partition
#     searchsorted       ⌈log₂ n⌉ per value looked up in n

per_input("sort", {"kthvalue": 2, "median": 2, "nanmedian": 3, "unique_consecutive": 1, "unique_dim_consecutive": 1})


@formula("aten::sort", "aten::argsort", "aten::msort", "aten::mode", "aten::unique_dim", category="sort")
def sort(call: Call) -> Work:
    values = call["self"]
    default = 0 if call.op == "aten::msort" else -1
    return arithmetic(call, values.numel * _doublings(extent(values, call.get("dim", default))))


@formula("aten::_unique", "aten::_unique2", category="sort")
def unique(call: Call) -> Work:
    elements = call["self"].numel
    return arithmetic(call, elements * _doublings(elements))


@formula("aten::topk", category="sort")
def topk(call: Call) -> Work:
    return arithmetic(call, call["self"].numel * max(_doublings(call["k"]), 1))


@formula("aten::searchsorted", "aten::bucketize", category="sort")
def searchsorted(call: Call) -> Work:
    boundaries = call.get("sorted_sequence") or call["boundaries"]
    return arithmetic(call, call.out.numel * _doublings(extent(boundaries, -1)))


def _doublings(n: int) -> int:
    """⌈log₂ n⌉, 0 for n ≤ 1."""
    return max(n - 1, 0).bit_length()


# Embeddings: of the table only the rows that are looked up are read, each at most once.

_MEAN, _MAX = 1, 2


@formula("aten::embedding", category="embedding")
def embedding(call: Call) -> Work:
    weight, indices = call["weight"], call["indices"]
    return Work(flops=0, bytes_read=indices.distinct_bytes + _row_bytes(weight, indices))


@formula("quantized::embedding_byte", "quantized::embedding_4bit", category="embedding")
def quantized_embedding(call: Call) -> Work:
    """Each number is scaled and shifted; the table is packed, so the output says which rows were read."""
    return Work(flops=2 * call.out.numel)


@formula(
    *(f"quantized::embedding_bag_{bits}{by}" for bits in ("byte", "4bit", "2bit") for by in ("", "_rowwise_offsets")),
    category="embedding",
)  # fmt: skip
def quantized_embedding_bag(call: Call) -> Work:
    """Each number is scaled and shifted, then added to its bag."""
    return Work(flops=3 * call["indices"].numel * call.out.shape[-1])


@formula("aten::embedding_bag", "aten::_embedding_bag", "aten::_embedding_bag_forward_only", category="embedding")
def embedding_bag(call: Call) -> Work:
    """An addition (or comparison) per element looked up, a product with per-sample weights, a division for a mean."""
    weight, indices = call["weight"], call["indices"]
    looked_up = indices.numel * weight.shape[-1]
    is_weighted = call.get("per_sample_weights") is not None
    divided = call.out.numel if call.get("mode", 0) == _MEAN else 0
    others = total_bytes([call.get("offsets"), call.get("per_sample_weights")])
    return Work(
        flops=looked_up * (1 + is_weighted) + divided,
        bytes_read=indices.distinct_bytes + others + _row_bytes(weight, indices),
    )


@formula(
    "aten::embedding_dense_backward", "aten::embedding_backward", "aten::embedding_sparse_backward",
    category="embedding",
)  # fmt: skip
def embedding_backward(call: Call) -> Work:
    """Every row of the gradient is added to its row of the table's."""
    return arithmetic(call, call.first.numel)


@formula(
    "aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward", "aten::_embedding_bag_sparse_backward",
    category="embedding",
)  # fmt: skip
def embedding_bag_backward(call: Call) -> Work:
    """A bag's gradient goes to each of its rows; of a maximum to one row per element."""
    grad = call["grad"]
    if call.get("mode", 0) == _MAX:
        return arithmetic(call, grad.numel)
    scaled = call.get("mode", 0) == _MEAN or call.get("per_sample_weights") is not None
    return arithmetic(call, call["indices"].numel * grad.shape[-1] * (1 + scaled))


@formula("aten::_embedding_bag_per_sample_weights_backward", category="embedding")
def per_sample_weights_backward(call: Call) -> Work:
    """The gradient of a weight is the product of its row with the bag's gradient."""
    return arithmetic(call, 2 * call["indices"].numel * call["weight"].shape[-1])


@formula("aten::embedding_renorm", category="embedding")
def embedding_renorm(call: Call) -> Work:
    """Norm (2) and scaling (1) of the rows that are looked up."""
    weight, indices = call["self"], call["indices"]
    touched = _row_bytes(weight, indices)
    return Work(
        flops=3 * touched // weight.itemsize, bytes_read=indices.distinct_bytes + touched, bytes_written=touched
    )


def _row_bytes(weight: TensorSpec, indices: TensorSpec) -> int:
    looked_up = indices.distinct_numel * weight.shape[-1] * weight.itemsize
    return min(looked_up, weight.distinct_bytes)
