"""What torch's kernels refuse and its meta kernels let pass: mixed types, wrong channels, indices out of range.

An analysis must not report figures for a call that fails in torch. The words are close to torch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchgauge.capture.fake_tensor import FakeTensor, dtype_name
from torchgauge.capture.opcall import OpCall

# Arguments that a kernel wants in one type.
_MATRICES = {
    "aten::mm": ("self", "mat2"),
    "aten::bmm": ("self", "mat2"),
    "aten::addmm": ("self", "mat1", "mat2"),
    "aten::_addmm_activation": ("self", "mat1", "mat2"),
    "aten::baddbmm": ("self", "batch1", "batch2"),
    "aten::addmv": ("self", "mat", "vec"),
    "aten::mv": ("self", "vec"),
    "aten::dot": ("self", "tensor"),
    "aten::convolution": ("input", "weight", "bias"),
    "aten::_convolution": ("input", "weight", "bias"),
    "aten::grid_sampler_2d": ("input", "grid"),
    "aten::grid_sampler_3d": ("input", "grid"),
}
# These take half-precision inputs with float32 parameters as well.
_NORMS = {
    f"aten::{name}": ("input", "weight", "bias")
    for name in (
        "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_no_update",
    )
}  # fmt: skip
_HALVES = (torch.float16, torch.bfloat16)
_TOGETHER = _MATRICES | _NORMS


def refuse_call(call: OpCall) -> None:
    """Raise what torch would raise for tensors of these types and shapes."""
    names = _TOGETHER.get(call.info.name)
    if names is not None:
        arguments = call.bind()
        types = [arguments[name].dtype for name in names if isinstance(arguments.get(name), FakeTensor)]
        mixed = call.info.name in _NORMS and types[0] in _HALVES and set(types[1:]) == {torch.float32}
        if len(set(types)) > 1 and not mixed:
            said = " and ".join(dtype_name(kind) for kind in dict.fromkeys(types))
            raise RuntimeError(f"{', '.join(names)} must have the same dtype, but got {said}")
    if "pointwise" in call.info.tags:
        for fake in call.written:
            if any(not step and size > 1 for size, step in zip(fake.spec.shape, fake.spec.stride, strict=True)):
                raise RuntimeError(
                    "unsupported operation: more than one element of the written-to tensor refers to a single memory "
                    "location. Please clone() the tensor before performing the operation."
                )
    if call.info.name in ("aten::convolution", "aten::_convolution"):
        arguments = call.bind()
        image, weight = arguments["input"], arguments["weight"]
        channels = image.shape[1] if image.dim() == weight.dim() else None
        if arguments["transposed"] and channels is not None and channels != weight.shape[0]:
            raise RuntimeError(
                f"Given transposed=1, weight of size {list(weight.shape)}, expected input{list(image.shape)} to have "
                f"{weight.shape[0]} channels, but got {channels} channels instead"
            )


def refuse_indices(call: OpCall) -> None:
    """Raise what torch would raise for indices that are known and out of range."""
    for index, size, lowest in _indexed(call):
        value = index.value
        if value is None or not index.storage_.known or index.storage_.assumed or not value.numel():
            continue
        least, most = int(value.min()), int(value.max())
        if most >= size or least < lowest:
            wrong = most if most >= size else least
            raise IndexError(f"index {wrong} is out of range for a dimension of size {size}")


# Ops that take an index along `dim` of `self`, also in place.
_ALONG_DIM = frozenset(
    f"aten::{name}"
    for name in ("index_select", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce",
                 "scatter_reduce_", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_")
)  # fmt: skip
_CLASSES = frozenset(("aten::nll_loss_forward", "aten::nll_loss2d_forward"))
_ROWS = frozenset(("aten::embedding", "aten::_embedding_bag", "aten::_embedding_bag_forward_only"))
_FLAT = frozenset(("aten::take", "aten::put", "aten::put_"))
_BY_TENSORS = frozenset(("aten::index", "aten::index_put", "aten::index_put_"))
INDEXING = _ALONG_DIM | _CLASSES | _ROWS | _FLAT | _BY_TENSORS


def _indexed(call: OpCall) -> Iterator[tuple[FakeTensor, int, int]]:
    """Index tensors of a call, the size of what they index, and the lowest that is allowed."""
    arguments, name = call.bind(), call.info.name
    source: Any = arguments.get("self")
    if name in _ROWS:
        yield arguments["indices"], arguments["weight"].shape[0], 0
    elif name in _ALONG_DIM:
        if source.dim() and isinstance(arguments["index"], FakeTensor):
            size = source.shape[arguments["dim"]]
            yield arguments["index"], size, -size if "index_fill" in name else 0
    elif name in _FLAT:
        yield arguments["index"], source.numel(), -source.numel()
    elif name in _CLASSES:
        # A negative `ignore_index` (-100 by default) is the one number below zero that is allowed.
        yield arguments["target"], source.shape[-1 if source.dim() < 3 else 1], min(arguments["ignore_index"], 0)
    else:
        indices = arguments["indices"]
        if all(index is None or index.dtype in (torch.int64, torch.int32) for index in indices):
            for place, index in enumerate(indices):
                if index is not None:
                    size = source.shape[place]
                    yield index, size, -size
