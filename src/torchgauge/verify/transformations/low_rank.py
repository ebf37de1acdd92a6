"""A layer as two thin ones."""

from __future__ import annotations

from torch import nn

from torchgauge.verify.code import literal
from torchgauge.verify.registry import LOSSY, transformation
from torchgauge.verify.trial import Applied, NotApplicableError, Trial

_LINEAR = """\
for path, rank in {layers}:
    layer = model.get_submodule(path)
    u, s, v = torch.linalg.svd(layer.weight.detach().float(), full_matrices=False)
    first = torch.nn.Linear(layer.in_features, rank, bias=False).to(layer.weight)
    second = torch.nn.Linear(rank, layer.out_features, bias=layer.bias is not None).to(layer.weight)
    first.weight.data.copy_(s[:rank, None] * v[:rank])
    second.weight.data.copy_(u[:, :rank])
    if layer.bias is not None:
        second.bias.data.copy_(layer.bias)
    model.set_submodule(path, torch.nn.Sequential(first, second))
"""
_CONVOLUTION = """\
for path, rank in {layers}:
    layer = model.get_submodule(path)
    u, s, v = torch.linalg.svd(layer.weight.detach().flatten(1).float(), full_matrices=False)
    options = {{name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}}
    first = type(layer)(layer.in_channels, rank, layer.kernel_size, bias=False, **options)
    second = type(layer)(rank, layer.out_channels, 1, bias=layer.bias is not None)
    first.weight.data.copy_((s[:rank, None] * v[:rank]).view_as(first.weight))
    second.weight.data.copy_(u[:, :rank].reshape(second.weight.shape))
    if layer.bias is not None:
        second.bias.data.copy_(layer.bias)
    model.set_submodule(path, torch.nn.Sequential(first, second).to(layer.weight))
"""
_KINDS = ((_LINEAR, (nn.Linear,)), (_CONVOLUTION, (nn.Conv1d, nn.Conv2d, nn.Conv3d)))


@transformation("low-rank", stage="weights", tolerance=LOSSY)
def factorised(trial: Trial) -> Applied:
    found = [(str(place["module"] or ""), int(place["evidence"]["rank"])) for place in trial.places]
    layers = {path: trial.module(path) for path, _ in found}
    plain = [(path, rank) for path, rank in found if getattr(layers[path], "groups", 1) == 1]
    groups = [(text, [each for each in plain if type(layers[each[0]]) in kinds]) for text, kinds in _KINDS]
    code = "".join(text.format(layers=literal(some)) for text, some in groups if some)
    if not code:
        raise NotApplicableError("its weight is not that of a plain linear or convolution layer")
    return Applied(code, places=sum(len(some) for _, some in groups))
