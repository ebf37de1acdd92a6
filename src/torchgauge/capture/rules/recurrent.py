from __future__ import annotations

from typing import Any

from torchgauge.capture.ghost import Specs
from torchgauge.capture.rules.registry import Arguments, shape_rule
from torchgauge.strides import contiguous_stride


@shape_rule("aten::mkldnn_rnn_layer")
def mkldnn_layer(arguments: Arguments, specs: Specs) -> Any:
    """One direction of one layer; the input comes time first."""
    if arguments["train"]:
        return None
    x, hidden, cell = arguments["input"].spec, arguments["hx_"].spec, arguments["cx_"].spec
    shape = (*x.shape[:-1], arguments["hidden_size"])
    out = specs.get(shape, contiguous_stride(shape), x.dtype, x.device)
    return out, hidden, cell, None  # a workspace is made for training alone
