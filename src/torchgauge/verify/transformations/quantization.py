"""Linear layers whose weights are kept in 8 bits with a scale for each output, and unpacked when they are used.

torchao has kernels for more formats; what torch itself can do needs no other package, and its output error is the same.
"""

from __future__ import annotations

from torch import nn

from torchgauge.verify.code import literal
from torchgauge.verify.registry import LOSSY, transformation
from torchgauge.verify.trial import Applied, NotApplicableError, Trial

_LAYER = """\
class Linear8Bit(torch.nn.Module):
    def __init__(self, linear, kind, largest):
        super().__init__()
        weight = linear.weight.detach()
        scale = (weight.abs().amax(1, keepdim=True) / largest).clamp_min(torch.finfo(weight.dtype).tiny)
        codes = weight / scale if kind.is_floating_point else (weight / scale).round()
        self.register_buffer("codes", codes.clamp(-largest, largest).to(kind))
        self.register_buffer("scale", scale.flatten())
        self.bias = linear.bias

    def forward(self, x):
        y = torch.nn.functional.linear(x, self.codes.to(x.dtype)) * self.scale
        return y if self.bias is None else y + self.bias

for path, kind, largest in {layers}:
    model.set_submodule(path, Linear8Bit(model.get_submodule(path), getattr(torch, kind), largest))
"""
_NOTE = "as a layer of torch's own that unpacks 8 bits at every call, not with torchao's kernels: their time may differ"
# The largest number of each.
_FORMATS = {"int8": ("int8", 127.0), "fp8_e4m3": ("float8_e4m3fn", 448.0)}


@transformation("quantize-weights", stage="weights", tolerance=LOSSY)
def eight_bits(trial: Trial) -> Applied:
    places = [(str(place["module"] or ""), str(place["evidence"]["format"])) for place in trial.places]
    layers = [(path, kind) for path, kind in places if type(trial.module(path)) is nn.Linear and kind in _FORMATS]
    if not layers:
        raise NotApplicableError("torch itself has no layer for this: it takes linear layers in 8 bits")
    code = _LAYER.replace("{layers}", literal([(path, *_FORMATS[kind]) for path, kind in layers]))
    return Applied(code, places=len(layers), note=_NOTE)
