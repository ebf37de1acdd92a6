"""moduleprofiler's formulas for the operations of a layer; users can add formulas for their own modules to the map."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from torchgauge.compat.module_calls import ModuleCall
from torchgauge.compat.observed import softmax_dim
from torchgauge.errors import TorchgaugeError

Input = tuple[Any, ...]
OpsFn = Callable[..., "int | None"]
OpsMap = dict[type[nn.Module] | str, OpsFn]

# Operations per element.
RATES: dict[type[nn.Module], int] = {
    nn.ReLU: 1,
    nn.ELU: 3,
    nn.Sigmoid: 3,
    nn.LeakyReLU: 4,
    nn.PReLU: 4,
    nn.SiLU: 4,
    nn.Softplus: 5,
    nn.SELU: 7,
    nn.Tanh: 7,
}
# One step of one unit: products of a weight, and what is left with and without biases.
GRU, LSTM = (6, 21, 15), (8, 31, 23)


def get_default_ops_map() -> OpsMap:
    """A new map: module type -> fn(module, input, output) -> operations."""
    return {"default": _no_count, "excluded": _no_count, **_LAYERS, **{kind: _rate(r) for kind, r in RATES.items()}}


def own_count(module: nn.Module, input: Input, output: object) -> int | None:
    """torchgauge's FLOPs of one call, all inside included; None if unknown.

    For those who want it as the "default" entry of the map, where the original has None.
    """
    try:
        return int(ModuleCall(module, input, {}, output).analyze().totals.flops)
    except TorchgaugeError:
        return None


def _no_count(module: nn.Module, input: Input, output: object) -> None:
    """Containers and layers without a formula have none: the sum over all modules counts every layer once."""
    return None


def _identity(module: nn.Identity, input: Input, output: object) -> int:
    return 0


def _rate(rate: int) -> OpsFn:
    def per_element(module: nn.Module, input: Input, output: Tensor) -> int:
        return rate * output.numel()

    return per_element


def _linear(module: nn.Linear, input: Input, output: Tensor) -> int:
    return output.numel() * (2 * module.in_features - (module.bias is None))


def _convolution(module: nn.Conv1d | nn.Conv2d, input: Input, output: Tensor) -> int:
    products = prod(module.kernel_size) * module.in_channels // module.groups
    return output.numel() * (2 * products - (module.bias is None))


def _transposed_convolution(module: nn.ConvTranspose1d | nn.ConvTranspose2d, input: Input, output: Tensor) -> int:
    dims = len(module.kernel_size)
    positions = prod(output.shape[-dims:])
    samples = output.numel() // (module.out_channels * positions)
    maps = samples * module.in_channels * module.out_channels // module.groups
    # Along each dimension: pairs of an input and a kernel element that land in the output, and its length, both
    # without output padding, as moduleprofiler has it.
    lengths, landing = [], []
    for dim in range(dims):
        stride, dilation, padding = module.stride[dim], module.dilation[dim], int(module.padding[dim])
        inputs, taps = range(input[0].shape[dim - dims]), range(module.kernel_size[dim])
        length = (len(inputs) - 1) * stride - 2 * padding + dilation * (len(taps) - 1) + 1
        lengths.append(length)
        landing.append(sum(0 <= at * stride + tap * dilation - padding < length for at in inputs for tap in taps))
    overlaps = prod(landing) - prod(lengths)
    products = maps * (positions * (prod(module.kernel_size) + 1) + overlaps)
    return products - (output.numel() if module.bias is None else 0)


def _recurrent(unit: tuple[int, int, int]) -> OpsFn:
    def count(module: nn.GRU | nn.LSTM, input: Input, output: object) -> int:
        products, biased, unbiased = unit
        layers, hidden = module.num_layers, module.hidden_size
        below = (3 * layers - 2 if module.bidirectional else 2 * layers - 1) * hidden
        rest = (biased if module.bias else unbiased) * layers
        steps = _rows(input[0], module.input_size) * (2 if module.bidirectional else 1)
        return steps * hidden * (products * (module.input_size + below) + rest)

    return count


def _recurrent_cell(unit: tuple[int, int, int]) -> OpsFn:
    def count(module: nn.GRUCell | nn.LSTMCell, input: Input, output: object) -> int:
        products, biased, unbiased = unit
        hidden = module.hidden_size
        rest = biased if module.bias else unbiased
        return _rows(input[0], module.input_size) * hidden * (products * (module.input_size + hidden) + rest)

    return count


def _rows(given: Tensor | PackedSequence, width: int) -> int:
    """Steps of all sequences together, whatever the layout."""
    data = given.data if isinstance(given, PackedSequence) else given
    return data.numel() // width


def _batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d, input: Input, output: Tensor) -> int:
    per_channel = input[0].numel() // module.num_features
    return int(module.num_features * ((7 if module.affine else 5) * per_channel + 4))


def _layer_norm(module: nn.LayerNorm, input: Input, output: Tensor) -> int:
    size = prod(module.normalized_shape)
    rate = 5 if not module.elementwise_affine else 6 if module.bias is None else 7
    return int(input[0].numel() // size * (rate * size + 4))


def _average_pool(module: nn.AvgPool1d | nn.AvgPool2d, input: Input, output: Tensor) -> int:
    dims = 2 if isinstance(module, nn.AvgPool2d) else 1
    size = module.kernel_size
    return output.numel() * (size**dims if isinstance(size, int) else prod(size))


def _per_output(module: nn.Module, input: Input, output: Any) -> int:
    values = output[0] if isinstance(output, tuple) else output  # indices beside the values
    return int(values.numel())


def _softmax(module: nn.Softmax, input: Input, output: Tensor) -> int:
    length = output.shape[softmax_dim(module, output.ndim)]
    return output.numel() // length * (4 * length - 1)


_LAYERS: dict[type[nn.Module] | str, OpsFn] = {
    nn.Identity: _identity,
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.ConvTranspose1d: _transposed_convolution,
    nn.ConvTranspose2d: _transposed_convolution,
    nn.GRUCell: _recurrent_cell(GRU),
    nn.GRU: _recurrent(GRU),
    nn.LSTMCell: _recurrent_cell(LSTM),
    nn.LSTM: _recurrent(LSTM),
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.AvgPool1d: _average_pool,
    nn.AvgPool2d: _average_pool,
    nn.AdaptiveMaxPool1d: _per_output,
    nn.AdaptiveMaxPool2d: _per_output,
    nn.AdaptiveAvgPool2d: _per_output,
    nn.MaxPool1d: _per_output,
    nn.MaxPool2d: _per_output,
    nn.Softmax: _softmax,
}
