from __future__ import annotations

import torch

from torchgauge.capture.fake_tensor import Spec, Specs
from torchgauge.capture.rules.registry import Arguments, shape_rule
from torchgauge.facts.strides import contiguous_stride, is_contiguous


@shape_rule("aten::sum", "aten::mean", "aten::amax", "aten::amin", "aten::var", "aten::std")
def reduce(arguments: Arguments, specs: Specs) -> Spec | None:
    x, dims = arguments["self"].spec, arguments.get("dim")
    rank = len(x.shape)
    if not x.dtype.is_floating_point or arguments.get("dtype") not in (None, x.dtype):
        return None
    # Reducing a permuted tensor may keep its order of dimensions; torch's kernel knows.
    if not is_contiguous(x.shape, x.stride) or 0 in x.shape:
        return None
    dims = [dims] if isinstance(dims, int) else dims or range(rank)
    if any(not -rank <= dim < rank for dim in dims):
        return None
    gone = {dim % rank for dim in dims} if rank else set()
    keep = arguments.get("keepdim", False)
    shape = tuple(1 if i in gone else n for i, n in enumerate(x.shape) if keep or i not in gone)
    return specs.get(shape, contiguous_stride(shape), x.dtype, x.device)


@shape_rule("aten::_safe_softmax")
def safe_softmax(arguments: Arguments, specs: Specs) -> Spec | None:
    return None if arguments["dtype"] is not None else softmax(arguments | {"half_to_float": False}, specs)


@shape_rule("aten::_softmax", "aten::_log_softmax")
def softmax(arguments: Arguments, specs: Specs) -> Spec | None:
    x, rank = arguments["self"].spec, len(arguments["self"].spec.shape)
    if arguments["half_to_float"] or not x.dtype.is_floating_point or not -rank <= arguments["dim"] < rank:
        return None
    return x if is_contiguous(x.shape, x.stride) else None


@shape_rule("aten::argmax", "aten::argmin")
def argmax(arguments: Arguments, specs: Specs) -> Spec | None:
    x, dim = arguments["self"].spec, arguments["dim"]
    rank = len(x.shape)
    if dim is None or arguments["keepdim"] or not -rank <= dim < rank:
        return None
    shape = tuple(n for i, n in enumerate(x.shape) if i != dim % rank)
    return specs.get(shape, contiguous_stride(shape), torch.int64, x.device)
