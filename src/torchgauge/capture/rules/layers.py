"""Shape rules of convolutions, pooling, resizing, normalization and recurrent layers."""

from __future__ import annotations

import torch

from torchgauge.capture.fake_tensor import Spec, Specs
from torchgauge.capture.opcall import Arguments
from torchgauge.capture.rules.registry import Result, channels_last_stride, is_channels_last, is_dense, shape_rule
from torchgauge.facts.tensor import contiguous_stride, is_contiguous


# Traces have the second one, whose own kernel asks CUDA for its devices where torch is built with it: a reader of files
# may not.
@shape_rule("aten::convolution", "aten::_convolution")
def convolution(arguments: Arguments, specs: Specs) -> Spec | None:
    image, weight, bias = arguments["input"].spec, arguments["weight"].spec, arguments["bias"]
    groups = arguments["groups"]
    rank = len(weight.shape) - 2
    if len(image.shape) != rank + 2 or image.dtype is not weight.dtype or 0 in image.shape:
        return None
    transposed = arguments["transposed"]
    channels_in = weight.shape[0] if transposed else weight.shape[1] * groups
    channels_out = weight.shape[1] * groups if transposed else weight.shape[0]
    if image.shape[1] != channels_in or channels_out % groups:
        return None
    if bias is not None and (bias.spec.shape != (channels_out,) or bias.spec.dtype is not image.dtype):
        return None
    given = (arguments[name] for name in ("stride", "padding", "dilation", "output_padding"))
    per_dim = zip(*(values * rank if len(values) == 1 else values for values in given), strict=True)
    sizes = zip(image.shape[2:], weight.shape[2:], per_dim, strict=True)
    if transposed:
        space = tuple((n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, k, (s, p, d, extra) in sizes)
    else:
        space = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, (s, p, d, _) in sizes)
    if any(size <= 0 for size in space):
        return None
    shape = (image.shape[0], channels_out, *space)
    last = is_channels_last(image) or is_channels_last(weight)
    return specs.get(
        shape, channels_last_stride(shape) if last else contiguous_stride(shape), image.dtype, image.device
    )


@shape_rule("aten::max_pool2d_with_indices")
def max_pool(arguments: Arguments, specs: Specs) -> Result:
    x = arguments["self"].spec
    space = _space(arguments, x, arguments["dilation"])
    if space is None:
        return None
    shape = (*x.shape[:-2], *space)
    stride = contiguous_stride(shape)
    return specs.get(shape, stride, x.dtype, x.device), specs.get(shape, stride, torch.int64, x.device)


@shape_rule("aten::avg_pool2d")
def avg_pool(arguments: Arguments, specs: Specs) -> Spec | None:
    x = arguments["self"].spec
    space = _space(arguments, x, [1, 1])
    if space is None:
        return None
    shape = (*x.shape[:-2], *space)
    return specs.get(shape, contiguous_stride(shape), x.dtype, x.device)


def _space(arguments: Arguments, x: Spec, dilation: list[int]) -> tuple[int, ...] | None:
    """Output height and width; None for layouts and paddings that torch should judge."""
    if len(x.shape) not in (3, 4) or not is_contiguous(x.shape, x.stride) or 0 in x.shape:
        return None
    kernel = _pair(arguments["kernel_size"])
    stride, padding, dilation = _pair(arguments["stride"] or kernel), _pair(arguments["padding"]), _pair(dilation)
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        return None
    sizes = []
    for n, k, s, p, d in zip(x.shape[-2:], kernel, stride, padding, dilation, strict=True):
        span = n + 2 * p - d * (k - 1) - 1
        size = span // s + 1
        if arguments["ceil_mode"]:
            size = -(-span // s) + 1
            # A window that would start in the padding after the input is dropped.
            size -= (size - 1) * s >= n + p
        sizes.append(size)
    return tuple(sizes) if min(sizes) > 0 else None


def _pair(values: list[int]) -> list[int]:
    return list(values) * 2 if len(values) == 1 else list(values)


_MODES = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d", "bicubic2d")


@shape_rule(
    *(f"aten::upsample_{mode}" for mode in _MODES), "aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa"
)
def upsample(arguments: Arguments, specs: Specs) -> Spec | None:
    x, size = arguments.get("self"), arguments.get("output_size")
    if x is None or size is None or len(x.spec.shape) != len(size) + 2 or min(size) <= 0 or 0 in x.spec.shape:
        return None
    shape = (*x.spec.shape[:2], *size)
    last = is_channels_last(x.spec)
    stride = channels_last_stride(shape) if last else contiguous_stride(shape)
    return specs.get(shape, stride, x.spec.dtype, x.spec.device)


_HALVES = (torch.float16, torch.bfloat16)


@shape_rule("aten::native_batch_norm", "aten::_native_batch_norm_legit")
def batch_norm(arguments: Arguments, specs: Specs) -> Result:
    x, training = arguments["input"].spec, arguments["training"]
    return _batch_norm(arguments, x, specs, saved=x.shape[1] if training and len(x.shape) > 1 else 0)


@shape_rule("aten::_native_batch_norm_legit_no_training")
def batch_norm_inference(arguments: Arguments, specs: Specs) -> Result:
    return _batch_norm(arguments, arguments["input"].spec, specs, saved=0)


def _batch_norm(arguments: Arguments, x: Spec, specs: Specs, *, saved: int) -> Result:
    if len(x.shape) < 2 or x.dtype in _HALVES or not is_dense(x):
        return None
    vectors = [arguments.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    if any(v is not None and (v.spec.shape != (x.shape[1],) or v.spec.dtype is not x.dtype) for v in vectors):
        return None
    statistics = specs.get((saved,), (1,), x.dtype, x.device)
    return x, statistics, statistics


@shape_rule("aten::native_layer_norm")
def layer_norm(arguments: Arguments, specs: Specs) -> Result:
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


_PAGE = 4096


@shape_rule("aten::mkldnn_rnn_layer")
def mkldnn_layer(arguments: Arguments, specs: Specs) -> Result:
    """One direction of one layer; the input comes time first. A workspace is made for training alone."""
    x, hidden, cell = arguments["input"].spec, arguments["hx_"].spec, arguments["cx_"].spec
    if len(x.shape) != 3:
        return None
    steps, batch, features = x.shape
    units = int(arguments["hidden_size"])
    shape = (*x.shape[:-1], units)
    out = specs.get(shape, contiguous_stride(shape), x.dtype, x.device)
    if not arguments["train"]:
        return out, hidden, cell, None
    size = (workspace_bytes(steps, batch, features, units, x.record.itemsize),)
    return out, hidden, cell, specs.get(size, (1,), torch.uint8, x.device)


def workspace_bytes(steps: int, batch: int, features: int, units: int, itemsize: int) -> int:
    """What oneDNN keeps of an LSTM layer for its backward pass (`set_workspace_sizes` of its rnn_utils): the gates and
    the outputs of each step; for the two ends of the layer the states of every step, and what their gradients will
    need. Each part starts a page; rows are padded to 64 bytes, and further where they would be 1 KiB apart."""

    def padded(length: int) -> int:
        aligned = -(-length * itemsize // 64) * 64 // itemsize
        return aligned + 64 // itemsize if aligned % 256 == 0 else aligned

    states = 2 * (steps + 1) * batch
    widest = padded(max(features, units))
    parts = [steps * batch * padded(4 * units), steps * batch * padded(units), *3 * [states * widest]]
    parts += 2 * [states * units]
    return sum(-(-part * itemsize // _PAGE) * _PAGE for part in parts)


@shape_rule("aten::_cudnn_rnn")
def cudnn(arguments: Arguments, specs: Specs) -> Result:
    """All layers at once. The last result are the weights in one buffer: torch's meta kernel gives back the one that it
    was given, also where that is none, and the backward pass wants a tensor. A model on the device has its weights in
    one buffer from the start, so no memory is taken for it."""
    x, hidden, cell = arguments["input"].spec, arguments["hx"].spec, arguments["cx"]
    directions = 2 if arguments["bidirectional"] else 1
    width = int(arguments["proj_size"] or arguments["hidden_size"]) * directions
    shape = (*x.shape[:-1], width)
    none = specs.get((0,), (1,), x.dtype, x.device)
    buffer = none if arguments["weight_buf"] is None else arguments["weight_buf"].spec
    out = specs.get(shape, contiguous_stride(shape), x.dtype, x.device)
    reserve = specs.get((0,), (1,), torch.uint8, x.device)
    return out, _dense(hidden, specs), none if cell is None else _dense(cell.spec, specs), reserve, buffer


@shape_rule("aten::_cudnn_rnn_backward")
def cudnn_backward(arguments: Arguments, specs: Specs) -> Result:
    x, cell, wanted = arguments["input"].spec, arguments["cx"], arguments["output_mask"]
    return (
        _dense(x, specs) if wanted[0] else None,
        _dense(arguments["hx"].spec, specs) if wanted[1] else None,
        _dense(cell.spec, specs) if wanted[2] and cell is not None else None,
        [_dense(weight.spec, specs) for weight in arguments["weight"]] if wanted[3] else [],
    )


def _dense(spec: Spec, specs: Specs) -> Spec:
    return specs.get(spec.shape, contiguous_stride(spec.shape), spec.dtype, spec.device)
