"""Sizes that tensor cores do not like, padded."""

from __future__ import annotations

from torch import nn

from torchgauge.verify.code import literal
from torchgauge.verify.registry import transformation
from torchgauge.verify.trial import Applied, NotApplicableError, Trial

_LAYER = """\
class PaddedLinear(torch.nn.Module):
    def __init__(self, linear, multiple=64):
        super().__init__()
        rows, columns = -linear.out_features % multiple, -linear.in_features % multiple
        self.outputs, self.columns = linear.out_features, columns
        self.weight = torch.nn.Parameter(torch.nn.functional.pad(linear.weight.detach(), (0, columns, 0, rows)))
        self.bias = None
        if linear.bias is not None:
            self.bias = torch.nn.Parameter(torch.nn.functional.pad(linear.bias.detach(), (0, rows)))

    def forward(self, x):
        x = torch.nn.functional.pad(x, (0, self.columns)) if self.columns else x
        return torch.nn.functional.linear(x, self.weight, self.bias)[..., : self.outputs]

for path in {layers}:
    model.set_submodule(path, PaddedLinear(model.get_submodule(path)))
"""


@transformation("odd-dimensions")
def padded(trial: Trial) -> Applied:
    paths = (str(place["module"] or "") for place in trial.places)
    layers = [path for path in paths if type(trial.module(path)) is nn.Linear]
    if not layers:
        raise NotApplicableError("its weight is not that of a plain linear layer")
    return Applied(_LAYER.replace("{layers}", literal(list(dict.fromkeys(layers)))), places=len(layers))
