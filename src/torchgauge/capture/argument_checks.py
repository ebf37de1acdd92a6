"""Argument checks that torch's kernels make and its meta kernels do not: mixed types, wrong channels, bad indices.

An analysis must not report figures for a call that fails in torch. The messages are close to torch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchgauge.capture.fake_tensor import FakeTensor, dtype_name
from torchgauge.capture.op_call import Arguments, FakeCall, Op
from torchgauge.capture.structure import map_tensors

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
    "aten::binary_cross_entropy": ("self", "target", "weight"),
}
# These take half-precision inputs with float32 parameters as well.
_NORMS = {
    f"aten::{name}": ("input", "weight", "bias")
    for name in (
        "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_no_update",
    )
}  # fmt: skip
_HALF_TYPES = (torch.float16, torch.bfloat16)
# Ops with other conditions on their arguments.
_BY_SHAPE = frozenset(
    f"aten::{name}"
    for name in ("convolution", "_convolution", "nll_loss_forward", "nll_loss2d_forward", "multinomial", "roll", "max",
                 "min")
)  # fmt: skip
_TOGETHER = _MATRICES | _NORMS


def check_call(call: FakeCall) -> None:
    """Raise what torch would raise for tensors of these types and shapes."""
    names = _TOGETHER.get(call.info.name)
    if names is not None:
        arguments = call.bind()
        types = [arguments[name].dtype for name in names if isinstance(arguments.get(name), FakeTensor)]
        mixed = call.info.name in _NORMS and types[0] in _HALF_TYPES and set(types[1:]) == {torch.float32}
        if len(set(types)) > 1 and not mixed:
            said = " and ".join(dtype_name(kind) for kind in dict.fromkeys(types))
            raise RuntimeError(f"{', '.join(names)} must have the same dtype, but got {said}")
    if "pointwise" in call.info.tags:
        _check_elements(call)
    if call.info.name in _BY_SHAPE:
        _check_shapes(call.info.name, call.bind())


# Kernels for these exist on every device; of the narrower ones some exist on a GPU alone, and fp8 hardly anywhere.
_EVERYWHERE = frozenset((torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool, torch.uint8,
                         torch.int8, torch.int16, torch.int32, torch.int64))  # fmt: skip
_accepted: set[tuple[Op, tuple[torch.dtype, ...]]] = set()


def _check_elements(call: FakeCall) -> None:
    """Elementwise ops: a kernel says on one element which types it takes, where its meta kernel takes any."""
    for fake in call.written:
        shape, stride = fake.spec.shape, fake.spec.stride
        if any(not step and size > 1 for size, step in zip(shape, stride, strict=True)):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a single memory "
                "location. Please clone() the tensor before performing the operation."
            )
        if call.info.written == ("self",):
            broadcast = torch.broadcast_shapes(*(arg.spec.shape for arg in call.args if isinstance(arg, FakeTensor)))
            if tuple(broadcast) != shape:
                raise RuntimeError(
                    f"output with shape {list(shape)} doesn't match the broadcast shape {list(broadcast)}"
                )
    types = tuple(fake.dtype for fake in call.tensors)
    is_random = "nondeterministic_seeded" in call.info.tags
    if (call.func, types) in _accepted or is_random or not _EVERYWHERE.issuperset(types):
        return
    if all(fake.spec.sparse is None for fake in call.tensors):
        on_cpu = {name: value for name, value in call.kwargs.items() if name != "device"}
        # One element for each tensor, with its type and its number of dimensions.
        ones, named = map_tensors((call.args, on_cpu), lambda fake: torch.ones((1,) * fake.dim(), dtype=fake.dtype))
        call.func(*ones, **named)
        _accepted.add((call.func, types))


def _check_shapes(op: str, arguments: Arguments) -> None:
    """Arguments that do not go together, by op."""
    match op.removeprefix("aten::"):
        case "convolution" | "_convolution" if arguments["transposed"]:
            image, weight = arguments["input"], arguments["weight"]
            channels = image.shape[1] if image.dim() == weight.dim() else None
            if channels is not None and channels != weight.shape[0]:
                raise RuntimeError(
                    f"Given transposed=1, weight of size {list(weight.shape)}, expected input{list(image.shape)} "
                    f"to have {weight.shape[0]} channels, but got {channels} channels instead"
                )
            steps = zip(arguments["output_padding"], arguments["stride"], arguments["dilation"], strict=False)
            if any(padding >= max(stride, dilation) for padding, stride, dilation in steps):
                raise RuntimeError("output padding must be smaller than either stride or dilation")
        case "nll_loss_forward" | "nll_loss2d_forward":
            kind = arguments["target"].dtype
            if kind not in (torch.int64, torch.uint8):
                raise RuntimeError(f"expected target dtype to be int64 or uint8, but got {dtype_name(kind)}")
        case "multinomial":
            choices, count = arguments["self"].shape[-1], arguments["num_samples"]
            if not arguments["replacement"] and count > choices:
                raise RuntimeError(f"cannot draw {count} samples of {choices} without replacement")
        case "roll":
            shifts, dims = arguments["shifts"], arguments["dims"]
            if len(shifts) != len(dims) and (dims or len(shifts) != 1):
                raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims: {len(dims)}")
        case "max" | "min" if "dim" not in arguments and "other" not in arguments:
            if not arguments["self"].numel():
                raise RuntimeError("max() and min() of an empty tensor need a dim argument")


def check_indices(call: FakeCall) -> None:
    """Raise what torch would raise for indices that are known and out of range."""
    for index, size, lowest, allowed in _indexed(call):
        value = _known(index)
        if value is None or not value.numel():
            continue
        least, most = value.aminmax()
        if lowest <= int(least) and int(most) < size:
            continue
        wrong = (value >= size) | (value < lowest)
        if allowed is not None:
            wrong &= value != allowed
        if wrong.any():
            raise IndexError(f"index {int(value[wrong][0])} is out of range for a dimension of size {size}")
    if call.info.name in _BY_VALUE:
        _check_values(call.info.name, call.bind())


def check_classes(index: FakeTensor, classes: int) -> None:
    """`one_hot` reaches a run as a comparison with 0, 1, 2, …, which takes any number."""
    value = _known(index)
    if value is None or not value.numel():
        return
    # This runs in the middle of the model's code, where the recorder would take its ops for the model's.
    with _disable_current_modes():
        least, most = int(value.min()), int(value.max())
    if least < 0:
        raise RuntimeError("Class values must be non-negative.")
    if 0 <= classes <= most:
        raise RuntimeError(f"Class values must be smaller than num_classes: got {most} of {classes}.")


def _known(fake: object) -> torch.Tensor | None:
    """The content, unless it follows from what an analysis made up or assumed."""
    if not isinstance(fake, FakeTensor) or fake.value is None or not fake.storage_.known or fake.storage_.assumed:
        return None
    return fake.value


# Ops that take an index along `dim` of `self`, also in place.
_ALONG_DIM = frozenset(
    f"aten::{name}"
    for name in ("index_select", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce",
                 "scatter_reduce_", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_",
                 "index_reduce", "index_reduce_")
)  # fmt: skip
_CLASSES = frozenset(("aten::nll_loss_forward", "aten::nll_loss2d_forward"))
_MARGINS = frozenset(("aten::multi_margin_loss", "aten::multilabel_margin_loss_forward"))
_ROWS = frozenset(("aten::embedding", "aten::_embedding_bag", "aten::_embedding_bag_forward_only"))
_FLAT = frozenset(("aten::take", "aten::put", "aten::put_"))
_BY_TENSORS = frozenset(("aten::index", "aten::index_put", "aten::index_put_"))
_UNPOOLING = frozenset(("aten::max_unpool2d", "aten::max_unpool3d"))
_BY_VALUE = frozenset(
    f"aten::{name}"
    for name in ("_embedding_bag", "_embedding_bag_forward_only", "masked_scatter", "masked_scatter_", "segment_reduce",
                 "_pack_padded_sequence")
)  # fmt: skip


def _indexed(call: FakeCall) -> Iterator[tuple[FakeTensor, int, int, int | None]]:
    """Index tensors of a call, the size that they index, the lowest index, and another value that is allowed."""
    arguments, name = call.bind(), call.info.name
    source: Any = arguments.get("self")
    if name in _ROWS:
        yield arguments["indices"], arguments["weight"].shape[0], 0, None
    elif name in _ALONG_DIM:
        if source.dim():
            size = source.shape[arguments["dim"]]
            yield arguments["index"], size, -size if "index_fill" in name else 0, None
    elif name in _FLAT:
        yield arguments["index"], source.numel(), -source.numel(), None
    elif name in _CLASSES:
        classes = source.shape[-1 if source.dim() < 3 else 1]
        yield arguments["target"], classes, 0, arguments["ignore_index"]
    elif name in _MARGINS:
        yield arguments["target"], source.shape[-1], -1 if "label" in name else 0, None
    elif name in _UNPOOLING:
        yield arguments["indices"], prod(arguments["output_size"]), 0, None
    elif name in _BY_TENSORS:
        indices = arguments["indices"]
        if all(index is None or index.dtype in (torch.int64, torch.int32) for index in indices):
            for place, index in enumerate(indices):
                if index is not None:
                    size = source.shape[place]
                    yield index, size, -size, None


def _check_values(op: str, arguments: Arguments) -> None:
    """Offsets, masks and lengths that are known and do not fit, by op."""
    match op.removeprefix("aten::").removesuffix("_"):
        case "_embedding_bag" | "_embedding_bag_forward_only":
            offsets, count = _known(arguments["offsets"]), arguments["indices"].numel()
            if offsets is None or not offsets.numel():
                return
            if int(offsets[0]):
                raise RuntimeError(f"offsets[0] has to be 0, but it is {int(offsets[0])}")
            if int(offsets[-1]) > count:
                raise RuntimeError(f"offsets[-1] is {int(offsets[-1])}, greater than the {count} indices")
        case "masked_scatter":
            mask, source = _known(arguments["mask"]), arguments["source"]
            if mask is None:
                return
            count = int(mask.expand(torch.broadcast_shapes(mask.shape, arguments["self"].shape)).sum())
            if count > source.numel():
                raise RuntimeError(f"the mask has {count} true elements, and the source only {source.numel()} elements")
        case "segment_reduce":
            lengths, size = _known(arguments["lengths"]), arguments["data"].shape[arguments["axis"]]
            if lengths is not None and not arguments["unsafe"] and (lengths.sum(-1) != size).any():
                raise RuntimeError(f"the lengths of the segments must sum to {size}, the size of the data")
        case "_pack_padded_sequence":
            lengths = _known(arguments["lengths"])
            if lengths is None or not lengths.numel():
                return
            if int(lengths.min()) <= 0:
                raise RuntimeError(f"lengths of sequences have to be greater than 0, but one is {int(lengths.min())}")
            if (lengths[1:] > lengths[:-1]).any():
                raise RuntimeError("lengths of sequences must be in decreasing order unless enforce_sorted=False")


INDEXING = _ALONG_DIM | _CLASSES | _MARGINS | _ROWS | _FLAT | _BY_TENSORS | _UNPOOLING | _BY_VALUE
