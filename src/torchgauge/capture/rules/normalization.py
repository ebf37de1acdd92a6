from __future__ import annotations

from typing import Any

import torch

from torchgauge.capture.fake_tensor import Spec, Specs
from torchgauge.capture.rules.layout import is_dense
from torchgauge.capture.rules.registry import Arguments, shape_rule
from torchgauge.facts.strides import contiguous_stride

_HALVES = (torch.float16, torch.bfloat16)


@shape_rule("aten::native_batch_norm", "aten::_native_batch_norm_legit")
def batch_norm(arguments: Arguments, specs: Specs) -> Any:
    x, training = arguments["input"].spec, arguments["training"]
    return _batch_norm(arguments, x, specs, saved=x.shape[1] if training and len(x.shape) > 1 else 0)


@shape_rule("aten::_native_batch_norm_legit_no_training")
def batch_norm_inference(arguments: Arguments, specs: Specs) -> Any:
    return _batch_norm(arguments, arguments["input"].spec, specs, saved=0)


def _batch_norm(arguments: Arguments, x: Spec, specs: Specs, *, saved: int) -> Any:
    if len(x.shape) < 2 or x.dtype in _HALVES or not is_dense(x):
        return None
    vectors = [arguments.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    if any(v is not None and (v.spec.shape != (x.shape[1],) or v.spec.dtype is not x.dtype) for v in vectors):
        return None
    statistics = specs.get((saved,), (1,), x.dtype, x.device)
    return x, statistics, statistics


@shape_rule("aten::native_layer_norm")
def layer_norm(arguments: Arguments, specs: Specs) -> Any:
    x, normalized = arguments["input"].spec, tuple(arguments["normalized_shape"])
    count = len(normalized)
    if x.dtype in _HALVES or x.shape[len(x.shape) - count :] != normalized or x.device.type != "cpu":
        return None
    for name in ("weight", "bias"):
        if arguments[name] is not None and arguments[name].spec.shape != normalized:
            return None
        if arguments[name] is not None and arguments[name].spec.dtype is not x.dtype:
            return None
    reduced = (*x.shape[: len(x.shape) - count], *[1] * count)
    statistics = specs.get(reduced, contiguous_stride(reduced), x.dtype, x.device)
    out = specs.get(x.shape, contiguous_stride(x.shape), x.dtype, x.device)
    return out, statistics, statistics
