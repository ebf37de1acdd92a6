"""torchstat's MAdd: multiplications and additions of one sample."""

from __future__ import annotations

from torch import Tensor, nn

from torchgauge.analysis import Analysis
from torchgauge.compat.observed import softmax_dim
from torchgauge.compat.torchstat.layer_table import Table, area, by_table, per_sample, rows_per_sample


def compute_madd(module: nn.Module, inp: object, out: object) -> int:
    """`inp` is a tensor, or a tuple or list of them where the layer takes several."""
    return by_table(MADD, module, inp, out, own_madd)


def own_madd(analysis: Analysis) -> int:
    return int(analysis.totals.flops)


def _per_position(module: nn.Conv2d | nn.ConvTranspose2d) -> int:
    products = area(module.kernel_size) * (module.in_channels // module.groups)
    return module.out_channels * (2 * products - 1 + (module.bias is not None))


def _convolution(module: nn.Conv2d, inp: Tensor, out: Tensor) -> int:
    return out.shape[-2] * out.shape[-1] * _per_position(module)


def _transposed_convolution(module: nn.ConvTranspose2d, inp: Tensor, out: Tensor) -> int:
    return inp.shape[-2] * inp.shape[-1] * _per_position(module)


def _batch_norm(module: nn.BatchNorm2d, inp: Tensor, out: Tensor) -> int:
    return 4 * per_sample(inp)


def _max_pool(module: nn.MaxPool2d, inp: Tensor, out: Tensor) -> int:
    return (area(module.kernel_size) - 1) * per_sample(out)


def _average_pool(module: nn.AvgPool2d, inp: Tensor, out: Tensor) -> int:
    return area(module.kernel_size) * per_sample(out)


def _per_input(module: nn.Module, inp: Tensor, out: Tensor) -> int:
    return per_sample(inp)


def _linear(module: nn.Linear, inp: Tensor, out: Tensor) -> int:
    return rows_per_sample(out) * module.out_features * (2 * module.in_features - 1)


def _softmax(module: nn.Softmax, inp: Tensor, out: Tensor) -> int:
    dim = softmax_dim(module, inp.ndim)
    length = inp.shape[dim]
    samples = inp.shape[0] if dim else 1
    return inp.numel() // (samples * length) * (3 * length - 1)


def _bilinear(module: nn.Bilinear, inp: Tensor, out: Tensor) -> int:
    products = module.in1_features * module.in2_features + module.in2_features
    return rows_per_sample(out) * module.out_features * (2 * products - 1)


def _none(module: nn.Module, inp: Tensor, out: Tensor) -> int:
    return 0


MADD: Table[int] = {
    nn.Conv2d: _convolution,
    nn.ConvTranspose2d: _transposed_convolution,
    nn.BatchNorm2d: _batch_norm,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _average_pool,
    nn.ReLU: _per_input,
    nn.ReLU6: _per_input,
    nn.ELU: _none,
    nn.LeakyReLU: _none,
    nn.PReLU: _none,
    nn.Linear: _linear,
    nn.Upsample: _none,
    nn.Softmax: _softmax,
    nn.Bilinear: _bilinear,
}
