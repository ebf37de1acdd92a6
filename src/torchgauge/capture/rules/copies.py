from __future__ import annotations

import torch

from torchgauge.capture.fake_tensor import Spec, Specs, dtype_name
from torchgauge.capture.rules.layout import is_channels_last, is_dense, preserved_stride
from torchgauge.capture.rules.registry import Arguments, shape_rule
from torchgauge.facts.strides import contiguous_stride


@shape_rule("aten::cat")
def cat(arguments: Arguments, specs: Specs) -> Spec | None:
    parts = [part.spec for part in arguments["tensors"]]
    first, dim = parts[0], arguments["dim"]
    rank = len(first.shape)
    # Empty 1-D parts are skipped by torch, and channels_last parts decide the layout together.
    if any(len(part.shape) != rank or part.dtype is not first.dtype or 0 in part.shape for part in parts):
        return None
    if not -rank <= dim < rank or any(is_channels_last(part) or not is_dense(part) for part in parts):
        return None
    dim %= rank
    if any(part.shape[:dim] != first.shape[:dim] or part.shape[dim + 1 :] != first.shape[dim + 1 :] for part in parts):
        return None
    shape = (*first.shape[:dim], sum(part.shape[dim] for part in parts), *first.shape[dim + 1 :])
    return specs.get(shape, contiguous_stride(shape), first.dtype, first.device)


@shape_rule("aten::clone")
def clone(arguments: Arguments, specs: Specs) -> Spec | None:
    return _copied(arguments["self"].spec, specs, arguments["memory_format"])


@shape_rule("aten::roll", "aten::flip")
def rearrange(arguments: Arguments, specs: Specs) -> Spec | None:
    return _copied(arguments["self"].spec, specs, None)


@shape_rule("aten::_to_copy")
def to_copy(arguments: Arguments, specs: Specs) -> Spec | None:
    x, layout = arguments["self"].spec, arguments.get("layout")
    if layout not in (None, torch.strided):
        return None
    copied = _copied(x, specs, arguments["memory_format"])
    asked = arguments.get("device")
    device = x.device if asked is None or torch.device(asked).type == "meta" else torch.device(asked)
    return copied and specs.get(copied.shape, copied.stride, arguments["dtype"] or x.dtype, device)


def _copied(x: Spec, specs: Specs, memory_format: torch.memory_format | None) -> Spec | None:
    if memory_format is torch.contiguous_format:
        return specs.get(x.shape, contiguous_stride(x.shape), x.dtype, x.device)
    if memory_format not in (None, torch.preserve_format):
        return None
    stride = preserved_stride(x)
    return None if stride is None else specs.get(x.shape, stride, x.dtype, x.device)


@shape_rule("aten::embedding")
def embedding(arguments: Arguments, specs: Specs) -> Spec | None:
    table, indices = arguments["weight"].spec, arguments["indices"].spec
    if indices.dtype not in (torch.int64, torch.int32):
        # The one error a rule reports: the meta kernels of older releases take any type, the real one does not.
        raise RuntimeError(f"indices must be int64 or int32, not {dtype_name(indices.dtype)}")
    if len(table.shape) != 2:
        return None
    shape = (*indices.shape, table.shape[1])
    return specs.get(shape, contiguous_stride(shape), table.dtype, table.device)
