"""torchstat's Flops: a multiply-accumulate is one, a bias or an elementwise operation another."""

from __future__ import annotations

from torch import Tensor, nn

from torchgauge.analysis import Analysis
from torchgauge.compat.torchstat.layer_table import Table, area, batch_of, by_table


def compute_flops(module: nn.Module, inp: object, out: object) -> int:
    """`inp` is a tensor, or a tuple or list of them where the layer takes several."""
    return by_table(FLOPS, module, inp, out, own_flops)


def own_flops(analysis: Analysis) -> int:
    """The project's FLOPs, of which a multiply-accumulate has two, in torchstat's unit."""
    return int(analysis.totals.flops - analysis.totals.macs)


def _convolution(module: nn.Conv2d, inp: Tensor, out: Tensor) -> int:
    positions = batch_of(out, 3) * out.shape[-2] * out.shape[-1]
    products = area(module.kernel_size) * module.in_channels * (module.out_channels // module.groups)
    return positions * (products + (module.out_channels if module.bias is not None else 0))


def _batch_norm(module: nn.BatchNorm2d, inp: Tensor, out: Tensor) -> int:
    return inp.numel() * (2 if module.affine else 1)


def _per_input(module: nn.Module, inp: Tensor, out: Tensor) -> int:
    return inp.numel()


def _linear(module: nn.Linear, inp: Tensor, out: Tensor) -> int:
    return out.numel() * module.in_features


def _upsample(module: nn.Upsample, inp: Tensor, out: Tensor) -> int:
    return out.numel() // out.shape[1]


def _none(module: nn.Module, inp: Tensor, out: Tensor) -> int:
    return 0


FLOPS: Table[int] = {
    nn.Conv2d: _convolution,
    nn.ConvTranspose2d: _none,
    nn.BatchNorm2d: _batch_norm,
    nn.MaxPool2d: _per_input,
    nn.AvgPool2d: _per_input,
    nn.ReLU: _per_input,
    nn.ReLU6: _per_input,
    nn.ELU: _per_input,
    nn.LeakyReLU: _per_input,
    nn.PReLU: _per_input,
    nn.Linear: _linear,
    nn.Upsample: _upsample,
    nn.Softmax: _none,
    nn.Bilinear: _none,
}
