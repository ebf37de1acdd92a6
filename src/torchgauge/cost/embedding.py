"""Embeddings: of the table only the rows that are looked up are read, each at most once."""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import arithmetic, total_bytes
from torchgauge.facts import TensorSpec

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
        flops=3 * touched // weight.itemsize,
        bytes_read=indices.distinct_bytes + touched,
        bytes_written=touched,
    )


def _row_bytes(weight: TensorSpec, indices: TensorSpec) -> int:
    looked_up = indices.distinct_numel * weight.shape[-1] * weight.itemsize
    return min(looked_up, weight.distinct_bytes)
