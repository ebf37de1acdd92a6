"""Gathering and scattering: the bytes are those of the elements touched, not of the tensors they lie in.

A gather reads its indices and as many elements as it returns. A scatter in place reads indices and source and writes
the elements they name (reading them too where it accumulates); out of place it also copies the rest. Elements chosen
by a boolean mask are as many as the result or the source has; if neither is known, all.
"""

from __future__ import annotations

from math import prod

from torchgauge.cost.registry import Call, Work, formula, written_bytes
from torchgauge.cost.work import argument, is_in_place, per_input, per_output, total_bytes
from torchgauge.facts import TensorSpec, tensor_specs

per_output(
    "indexing",
    dict.fromkeys(
        (
            "masked_fill", "masked_scatter", "masked_scatter_backward", "masked_select_backward", "flip", "fliplr",
            "flipud", "roll", "rot90", "repeat", "repeat_interleave", "tile", "tril", "triu", "diag", "diag_embed",
            "diagflat", "diagonal_backward", "select_backward", "slice_backward", "select_scatter", "slice_scatter",
            "diagonal_scatter", "as_strided_scatter", "index_select_backward", "one_hot", "channel_shuffle",
            "native_channel_shuffle", "tril_indices", "triu_indices", "combinations", "cartesian_prod",
        ),
        0,
    ),
)  # fmt: skip
# Looking for non-zeros compares every element; the gradient of overlapping windows is summed.
per_input("indexing", {"nonzero": 1, "nonzero_static": 1, "argwhere": 1, "nonzero_numpy": 1, "unfold_backward": 1})


@formula("aten::gather", "aten::take", "aten::take_along_dim", "aten::index_select", category="indexing")
def gather(call: Call) -> Work:
    return _gathered(call, total_bytes(argument(call, "index", "indices")))


@formula("aten::index", "aten::_unsafe_index", "aten::_unsafe_masked_index", category="indexing")
def index(call: Call) -> Work:
    return _gathered(call, total_bytes([call["indices"], call.get("mask")]))


@formula("aten::masked_select", category="indexing")
def masked_select(call: Call) -> Work:
    return _gathered(call, total_bytes(call["mask"]))


@formula("aten::scatter", "aten::scatter_add", "aten::scatter_reduce", category="indexing")
def scatter(call: Call) -> Work:
    accumulates = call.op.startswith("aten::scatter_add") or call.get("reduce") is not None
    touched = call["index"].numel
    source = touched * call["src"].itemsize if call.get("src") is not None else 0
    return _scattered(call, touched, total_bytes(call["index"]) + source, accumulates)


@formula("aten::index_add", "aten::index_reduce", category="indexing")
def index_add(call: Call) -> Work:
    source = call["source"]
    work = _scattered(call, source.numel, total_bytes([call["index"], source]), accumulates=True)
    is_scaled = call.get("alpha", 1) != 1
    return work._replace(flops=(work.flops or 0) * (1 + is_scaled))


@formula("aten::index_copy", category="indexing")
def index_copy(call: Call) -> Work:
    source = call["source"]
    return _scattered(call, source.numel, total_bytes([call["index"], source]), accumulates=False)


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
    accumulates = bool(call.get("accumulate")) or call.op.endswith("_accumulate")
    read = total_bytes([call["indices"], call["values"], call.get("mask")])
    return _scattered(call, _put_elements(call), read, accumulates)


@formula("aten::fill_diagonal", category="indexing")
def fill_diagonal(call: Call) -> Work:
    return Work(flops=0, bytes_read=0, bytes_written=min(call["self"].shape) * call["self"].itemsize)


def _gathered(call: Call, index_bytes: int) -> Work:
    source = call["self"]
    return Work(flops=0, bytes_read=index_bytes + min(call.out.nbytes, source.distinct_bytes))


def _scattered(call: Call, touched: int, read: int, accumulates: bool) -> Work:
    target = call["self"]
    touched_bytes = min(touched * target.itemsize, target.distinct_bytes)
    flops = touched if accumulates and call.is_arithmetic else 0
    if is_in_place(call):
        return Work(flops=flops, bytes_read=read + accumulates * touched_bytes, bytes_written=touched_bytes)
    return Work(flops=flops, bytes_read=read + target.distinct_bytes, bytes_written=written_bytes(call))


def _put_elements(call: Call) -> int:
    """How many elements an assignment to `self[indices]` names."""
    target, values = call["self"], call["values"]
    indices = list(call["indices"])
    if any(isinstance(item, TensorSpec) and item.dtype in ("bool", "uint8") for item in indices):
        return int(values.numel if values.numel > 1 else target.numel)
    kept = [size for size, item in zip(target.shape, indices, strict=False) if item is None]
    specs = tuple(tensor_specs(indices))
    rank = max((len(spec.shape) for spec in specs), default=0)
    padded = [(1,) * (rank - len(spec.shape)) + spec.shape for spec in specs]
    broadcast = [max(sizes) for sizes in zip(*padded, strict=True)]
    return prod([*broadcast, *kept, *target.shape[len(indices) :]])
