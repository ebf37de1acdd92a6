from __future__ import annotations

from typing import Any

import torch

from torchgauge.capture.fake_tensor import Spec, Specs
from torchgauge.capture.rules.registry import Arguments, shape_rule
from torchgauge.facts.strides import contiguous_stride

_PAGE = 4096


@shape_rule("aten::mkldnn_rnn_layer")
def mkldnn_layer(arguments: Arguments, specs: Specs) -> Any:
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
def cudnn(arguments: Arguments, specs: Specs) -> Any:
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
def cudnn_backward(arguments: Arguments, specs: Specs) -> Any:
    x, cell, wanted = arguments["input"].spec, arguments["cx"], arguments["output_mask"]
    return (
        _dense(x, specs) if wanted[0] else None,
        _dense(arguments["hx"].spec, specs) if wanted[1] else None,
        _dense(cell.spec, specs) if wanted[2] and cell is not None else None,
        [_dense(weight.spec, specs) for weight in arguments["weight"]] if wanted[3] else [],
    )


def _dense(spec: Spec, specs: Specs) -> Spec:
    return specs.get(spec.shape, contiguous_stride(spec.shape), spec.dtype, spec.device)
