"""moduleprofiler's maps from module types to functions: operations of a call, sizes of its inputs and outputs. Users
can add functions for their own modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from torchgauge.compat.observed import ModuleCall, softmax_dim
from torchgauge.errors import TorchgaugeError
from torchgauge.registry import Registry

Input = tuple[Any, ...]
OpsFn = Callable[..., "int | None"]
OpsMap = dict[type[nn.Module] | str, OpsFn]
IoSizeFn = Callable[..., tuple[object, object]]
IoSizeMap = dict[type[nn.Module] | str, IoSizeFn]

_LAYERS: Registry[type[nn.Module] | str, OpsFn] = Registry("formula of")

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
# One step of one unit: operations per weight, and the remaining ones with and without biases.
GRU, LSTM = (6, 21, 15), (8, 31, 23)


def get_default_ops_map() -> OpsMap:
    """A new map: module type -> fn(module, input, output) -> operations."""

    def no_count(module: nn.Module, input: Input, output: object) -> None:
        """Containers and layers without a formula have none: the sum over all modules counts every layer once."""

    def per_element(rate: int) -> OpsFn:
        return lambda module, input, output: rate * output.numel()

    rates: OpsMap = {kind: per_element(rate) for kind, rate in RATES.items()}
    return {"default": no_count, "excluded": no_count, **_LAYERS, **rates}


def own_count(module: nn.Module, input: Input, output: object) -> int | None:
    """torchgauge's FLOPs of one call, submodules included; None if unknown.

    It can be the "default" entry of the map, which is None in the original.
    """
    try:
        return int(ModuleCall(module, input, {}, output).analyze().totals.flops)
    except TorchgaugeError:
        return None


@_LAYERS.register(nn.Identity)
def identity(module: nn.Identity, input: Input, output: object) -> int:
    return 0


@_LAYERS.register(nn.Linear)
def linear(module: nn.Linear, input: Input, output: Tensor) -> int:
    return output.numel() * (2 * module.in_features - (module.bias is None))


@_LAYERS.register(nn.Conv1d, nn.Conv2d)
def convolution(module: nn.Conv1d | nn.Conv2d, input: Input, output: Tensor) -> int:
    products = prod(module.kernel_size) * module.in_channels // module.groups
    return output.numel() * (2 * products - (module.bias is None))


@_LAYERS.register(nn.ConvTranspose1d, nn.ConvTranspose2d)
def transposed_convolution(module: nn.ConvTranspose1d | nn.ConvTranspose2d, input: Input, output: Tensor) -> int:
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


_LAYERS[nn.GRU] = lambda module, input, output: _recurrent(module, input, GRU)
_LAYERS[nn.LSTM] = lambda module, input, output: _recurrent(module, input, LSTM)
_LAYERS[nn.GRUCell] = lambda module, input, output: _recurrent_cell(module, input, GRU)
_LAYERS[nn.LSTMCell] = lambda module, input, output: _recurrent_cell(module, input, LSTM)


def _recurrent(module: nn.GRU | nn.LSTM, input: Input, unit: tuple[int, int, int]) -> int:
    products, biased, unbiased = unit
    layers, hidden = module.num_layers, module.hidden_size
    below = (3 * layers - 2 if module.bidirectional else 2 * layers - 1) * hidden
    rest = (biased if module.bias else unbiased) * layers
    steps = _rows(input[0], module.input_size) * (2 if module.bidirectional else 1)
    return steps * hidden * (products * (module.input_size + below) + rest)


def _recurrent_cell(module: nn.GRUCell | nn.LSTMCell, input: Input, unit: tuple[int, int, int]) -> int:
    products, biased, unbiased = unit
    hidden = module.hidden_size
    rest = biased if module.bias else unbiased
    return _rows(input[0], module.input_size) * hidden * (products * (module.input_size + hidden) + rest)


def _rows(given: Tensor | PackedSequence, width: int) -> int:
    """Steps of all sequences together, whatever the layout."""
    data = given.data if isinstance(given, PackedSequence) else given
    return data.numel() // width


@_LAYERS.register(nn.BatchNorm1d, nn.BatchNorm2d)
def batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d, input: Input, output: Tensor) -> int:
    per_channel = input[0].numel() // module.num_features
    return int(module.num_features * ((7 if module.affine else 5) * per_channel + 4))


@_LAYERS.register(nn.LayerNorm)
def layer_norm(module: nn.LayerNorm, input: Input, output: Tensor) -> int:
    size = prod(module.normalized_shape)
    rate = 5 if not module.elementwise_affine else 6 if module.bias is None else 7
    return int(input[0].numel() // size * (rate * size + 4))


@_LAYERS.register(nn.AvgPool1d, nn.AvgPool2d)
def average_pool(module: nn.AvgPool1d | nn.AvgPool2d, input: Input, output: Tensor) -> int:
    dims = 2 if isinstance(module, nn.AvgPool2d) else 1
    size = module.kernel_size
    return output.numel() * (size**dims if isinstance(size, int) else prod(size))


@_LAYERS.register(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d, nn.MaxPool1d, nn.MaxPool2d)
def per_output(module: nn.Module, input: Input, output: Any) -> int:
    values = output[0] if isinstance(output, tuple) else output  # values, indices
    return int(values.numel())


@_LAYERS.register(nn.Softmax)
def softmax(module: nn.Softmax, input: Input, output: Tensor) -> int:
    length = output.shape[softmax_dim(module, output.ndim)]
    return output.numel() // length * (4 * length - 1)


def get_default_io_size_map() -> IoSizeMap:
    """A new map: module type -> fn(module, input, output) -> (input size, output size)."""
    recurrent = (nn.GRUCell, nn.GRU, nn.LSTMCell, nn.LSTM)
    return {**dict.fromkeys(recurrent, default_io_size), "default": default_io_size}


def default_io_size(module: nn.Module, input: tuple[object, ...], output: object) -> tuple[object, object]:
    """The size of the first positional input, and of the output in its structure."""
    return (sizes_of(input[0]) if input else None), sizes_of(output)


def sizes_of(value: object) -> object:
    """Tensors become their sizes, containers keep their structure, other values become None."""
    if isinstance(value, PackedSequence):
        return tuple(value.data.size())
    if isinstance(value, Tensor):
        return tuple(value.size())
    if isinstance(value, Mapping):
        return {key: sizes_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        sizes = [sizes_of(item) for item in value]
        return sizes if isinstance(value, list) else tuple(sizes)
    return None
