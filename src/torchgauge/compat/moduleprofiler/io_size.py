"""Sizes of a module's inputs and outputs; users can add functions for their own modules to the map."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

IoSizeFn = Callable[..., tuple[object, object]]
IoSizeMap = dict[type[nn.Module] | str, IoSizeFn]


def get_default_io_size_map() -> IoSizeMap:
    """A new map: module type -> fn(module, input, output) -> (input size, output size)."""
    recurrent = (nn.GRUCell, nn.GRU, nn.LSTMCell, nn.LSTM)
    return {**dict.fromkeys(recurrent, default_io_size), "default": default_io_size}


def default_io_size(module: nn.Module, input: tuple[object, ...], output: object) -> tuple[object, object]:
    """The size of the first positional input, and of the output in its structure."""
    return (sizes_of(input[0]) if input else None), sizes_of(output)


def sizes_of(value: object) -> object:
    """Tensors become their sizes, containers keep their form, other values are None."""
    if isinstance(value, PackedSequence):
        return tuple(value.data.size())
    if isinstance(value, torch.Tensor):
        return tuple(value.size())
    if isinstance(value, Mapping):
        return {key: sizes_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        sizes = [sizes_of(item) for item in value]
        return sizes if isinstance(value, list) else tuple(sizes)
    return None
