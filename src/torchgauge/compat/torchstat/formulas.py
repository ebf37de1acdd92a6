"""torchstat's formulas: MAdd, Flops and memory traffic of the layers it knows; other layers get torchgauge's figures.

- MAdd: multiplications and additions of one sample.
- Flops: a multiply-accumulate is one, a bias or an elementwise operation another.
- Memory: elements read and written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from torchgauge.analysis import Analysis
from torchgauge.compat.observed import ModuleCall
from torchgauge.nested import find_all

T = TypeVar("T")
Traffic = tuple[int, int]
Count = Callable[[Any, Tensor, Tensor], int]  # of a layer, its first input and its first output


def compute_madd(module: nn.Module, inp: object, out: object) -> int:
    """`inp` is a tensor, or a tuple or list of them where the layer takes several."""
    return _count(module, inp, out, lambda known: known.madd, own_madd)


def compute_flops(module: nn.Module, inp: object, out: object) -> int:
    """`inp` is a tensor, or a tuple or list of them where the layer takes several."""
    return _count(module, inp, out, lambda known: known.flops, own_flops)


def compute_memory(module: nn.Module, inp: object, out: object) -> Traffic:
    """`inp` is a tensor, or a tuple or list of them where the layer takes several."""
    return _count(module, inp, out, lambda known: known.memory, lambda found: own_memory(found, item_bytes(inp)))


def own_madd(analysis: Analysis) -> int:
    return int(analysis.totals.flops)


def own_flops(analysis: Analysis) -> int:
    """torchgauge counts a multiply-accumulate as two FLOPs, torchstat as one."""
    return int(analysis.totals.flops - analysis.totals.macs)


def own_memory(analysis: Analysis, itemsize: int) -> Traffic:
    return analysis.totals.bytes_read // itemsize, analysis.totals.bytes_written // itemsize


def item_bytes(inp: object) -> int:
    """Bytes of an element of the input; torchstat assumes the same width for all tensors."""
    given = first_tensor(inp)
    return 1 if given is None else given.element_size()


def _count(
    module: nn.Module,
    inp: object,
    out: object,
    formula_of: Callable[[Formulas], Callable[[Any, Any, Any], T]],
    otherwise: Callable[[Analysis], T],
) -> T:
    known = find_formulas(module)
    if known is not None:
        return formula_of(known)(module, first_tensor(inp), first_tensor(out))
    args = tuple(inp) if isinstance(inp, list | tuple) else (inp,)
    return otherwise(ModuleCall(module, args, {}, out).analyze())


def find_formulas(module: nn.Module) -> Formulas | None:
    """The formulas of the module's class, or of the closest class that it inherits from."""
    return next((LAYERS[kind] for kind in type(module).__mro__ if kind in LAYERS), None)


def first_tensor(value: object) -> Tensor | None:
    """The first tensor in a nested value."""
    return next(iter(tensors_in(value)), None)


def tensors_in(value: object) -> list[Tensor]:
    return list(find_all(value, torch.Tensor))


def _batch(tensor: Tensor, sample_dims: int) -> int:
    """The batch size; 1 for a single sample without a batch dimension."""
    return tensor.shape[0] if tensor.ndim > sample_dims else 1


def _per_sample(tensor: Tensor) -> int:
    """Elements of one sample; the first dimension is the batch."""
    return prod(tensor.shape[1:])


def _area(size: int | tuple[int, ...]) -> int:
    """Elements of a two-dimensional kernel."""
    return size * size if isinstance(size, int) else prod(size)


def _convolution_flops(module: nn.Conv2d, inp: Tensor, out: Tensor) -> int:
    positions = _batch(out, 3) * out.shape[-2] * out.shape[-1]
    products = _area(module.kernel_size) * module.in_channels * (module.out_channels // module.groups)
    return positions * (products + (module.out_channels if module.bias is not None else 0))


def _convolution_madd(module: nn.Conv2d | nn.ConvTranspose2d, inp: Tensor, out: Tensor) -> int:
    """Counted at every position of the output; for a transposed convolution, of the input."""
    positions = (inp if isinstance(module, nn.ConvTranspose2d) else out).shape[-2:].numel()
    products = _area(module.kernel_size) * (module.in_channels // module.groups)
    return positions * module.out_channels * (2 * products - 1 + (module.bias is not None))


def _softmax_madd(module: nn.Softmax, inp: Tensor, out: Tensor) -> int:
    """Of one softmax over all values of the sample, along whichever dimension it runs."""
    return 3 * prod(inp.shape[1:] if inp.ndim > 1 else inp.shape) - 1


def _matrix_madd(module: nn.Linear | nn.Bilinear, inp: Tensor, out: Tensor) -> int:
    rows = prod(out.shape[1:-1])  # of one sample
    products = (
        module.in_features
        if isinstance(module, nn.Linear)
        else module.in1_features * module.in2_features + module.in2_features
    )
    return rows * module.out_features * (2 * products - 1)


def _zero(module: nn.Module, inp: Tensor, out: Tensor) -> int:
    return 0


def _elements_in(module: nn.Module, inp: Tensor, out: Tensor) -> int:
    return inp.numel()


def _elements_in_sample(module: nn.Module, inp: Tensor, out: Tensor) -> int:
    return _per_sample(inp)


def _in_and_out(module: nn.Module, inp: Tensor, out: Tensor) -> Traffic:
    return inp.numel(), out.numel()


def _with_parameters(module: nn.Module, inp: Tensor, out: Tensor) -> Traffic:
    """The parameters are read once for every sample."""
    trainable = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    return inp.numel() + _batch(inp, 3 if isinstance(module, nn.Conv2d) else 1) * trainable, out.numel()


@dataclass(frozen=True, slots=True)
class Formulas:
    madd: Count = _zero
    flops: Count = _zero
    memory: Callable[[Any, Tensor, Tensor], Traffic] = lambda module, inp, out: (0, 0)


LAYERS: dict[type[nn.Module], Formulas] = {
    nn.Conv2d: Formulas(_convolution_madd, _convolution_flops, _with_parameters),
    nn.ConvTranspose2d: Formulas(_convolution_madd),
    nn.BatchNorm2d: Formulas(
        madd=lambda module, inp, out: 4 * _per_sample(inp),
        flops=lambda module, inp, out: inp.numel() * (2 if module.affine else 1),
        memory=lambda module, inp, out: (inp.numel() + inp.shape[0] * 2 * module.num_features, inp.numel()),
    ),
    nn.MaxPool2d: Formulas(
        lambda module, inp, out: (_area(module.kernel_size) - 1) * _per_sample(out), _elements_in, _in_and_out
    ),
    nn.AvgPool2d: Formulas(
        lambda module, inp, out: _area(module.kernel_size) * _per_sample(out), _elements_in, _in_and_out
    ),
    nn.ReLU: Formulas(_elements_in_sample, _elements_in, _in_and_out),
    nn.ReLU6: Formulas(_elements_in_sample, _elements_in, _in_and_out),
    nn.ELU: Formulas(_zero, _elements_in, _in_and_out),
    nn.LeakyReLU: Formulas(_zero, _elements_in, _in_and_out),
    nn.PReLU: Formulas(_zero, _elements_in, _with_parameters),
    nn.Linear: Formulas(_matrix_madd, lambda module, inp, out: out.numel() * module.in_features, _with_parameters),
    nn.Upsample: Formulas(flops=lambda module, inp, out: out.numel() // out.shape[1]),
    nn.Softmax: Formulas(_softmax_madd),
    nn.Bilinear: Formulas(_matrix_madd),
}
