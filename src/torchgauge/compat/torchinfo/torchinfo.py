"""`summary`: the layers of a model as a table. `input_size` or `input_data` become the arguments of the model."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from torchgauge.compat.observed import require_module
from torchgauge.compat.torchinfo.enums import ColumnSettings, Mode, RowSettings, Verbosity
from torchgauge.compat.torchinfo.formatting import FormattingOptions
from torchgauge.compat.torchinfo.layer_info import LayerInfo
from torchgauge.compat.torchinfo.layers import LayerCalls, called_layers, static_layers
from torchgauge.compat.torchinfo.model_statistics import ModelStatistics
from torchgauge.errors import TorchgaugeError
from torchgauge.source.candidate import make_tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """`sizes` keeps the structure of what was given, with sizes for tensors; empty where nothing was."""

    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = field(default_factory=dict)
    sizes: object = field(default_factory=list)
    nbytes: int = 0


def from_data(data: object) -> Inputs:
    """A tensor or array is the only argument, a sequence all of them, a mapping the keywords."""
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = {}
    if isinstance(data, torch.Tensor | np.ndarray):
        args = (data,)
    elif isinstance(data, Mapping):
        kwargs = dict(data)
    elif isinstance(data, list | tuple):
        args = tuple(data)
    else:
        raise RuntimeError(f"input_data is a tensor, a list of arguments or a dict of keywords, not {data!r}")
    found: list[torch.Tensor] = []
    _mapped(data, found.append)
    nbytes = sum(int(tensor.nbytes) for tensor in found)
    return Inputs(args, kwargs, _mapped(data, lambda tensor: torch.Size(tensor.shape)), nbytes)


def from_size(size: object, dtypes: Sequence[object] | None, batch_dim: int | None) -> Inputs:
    """Tensors of one size or several; `batch_dim` is where a batch of one is put in."""
    sizes = correct_sizes(size)
    made = []
    for one, kind in zip(sizes, [torch.float32] * len(sizes) if dtypes is None else dtypes, strict=False):
        # A dtype may be given as torch.LongTensor too, which has one.
        dtype = getattr(kind, "dtype", kind)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"dtypes holds {kind!r}, which is not a torch dtype")
        numbers = [operator.index(number) for number in one]  # TypeError for a fraction, as torch has it
        if batch_dim is not None:
            last = len(numbers)
            if not -last - 1 <= batch_dim <= last:
                raise IndexError(f"batch_dim {batch_dim} is out of range for {one}: from {-last - 1} to {last}")
            numbers.insert(batch_dim if batch_dim >= 0 else last + 1 + batch_dim, 1)
        # Random integers below one are zero: an index that every table has.
        made.append(make_tensor(tuple(numbers), dtype, value=0))
    return Inputs(tuple(made), {}, sizes, sum(tensor.nbytes for tensor in made))


def correct_sizes(size: object) -> list[Any]:
    """A list of sizes, whichever way they were given."""
    if not isinstance(size, list | tuple):
        raise TypeError(f"input_size is a tuple of numbers or a list of such, not a {type(size).__name__}")
    if not size or any(number <= 0 for number in _numbers(size)):
        raise ValueError(f"input_size has no number, or one that is not positive: {size}")
    if isinstance(size[0], list | tuple):
        return list(size)
    return [tuple(size) if isinstance(size, list) else size]


def _numbers(size: Any) -> Iterator[Any]:
    for item in size:
        if isinstance(item, list | tuple):
            yield from _numbers(item)
        else:
            yield item


def _mapped(data: Any, action: Callable[[Any], Any]) -> Any:
    """The structure with `action` done to every tensor and array."""
    if isinstance(data, torch.Tensor | np.ndarray):
        return action(data)
    if isinstance(data, Mapping):
        return {name: _mapped(item, action) for name, item in data.items()}
    if isinstance(data, list | tuple):
        items = [_mapped(item, action) for item in data]
        return tuple(items) if isinstance(data, tuple) else items
    return data


REQUIRES_INPUT = {ColumnSettings.INPUT_SIZE, ColumnSettings.OUTPUT_SIZE, ColumnSettings.MULT_ADDS}

# What `cache_forward_pass` keeps: by the model itself and all that decides what its layers show.
_cached: dict[tuple[object, ...], tuple[nn.Module, list[LayerInfo]]] = {}


def summary(
    model: nn.Module,
    input_size: Sequence[object] | None = None,
    input_data: torch.Tensor | np.ndarray[Any, Any] | Sequence[object] | Mapping[str, object] | None = None,
    batch_dim: int | None = None,
    cache_forward_pass: bool | None = None,
    col_names: Iterable[str] | None = None,
    col_width: int = 25,
    depth: int = 3,
    device: torch.device | str | None = None,
    dtypes: Sequence[object] | None = None,
    mode: str | None = None,
    row_settings: Iterable[str] | None = None,
    verbose: int | None = None,
    **kwargs: object,
) -> ModelStatistics:
    """The layers of a model: names, shapes, parameters, mult-adds. Printed unless `verbose` is 0.

    The forward pass is made on tensors without values; the model stays where and as it is. `input_size` holds the batch
    unless `batch_dim` says where it goes; without any input there are names and parameters only. `kwargs` go to the
    model's forward.
    """
    require_module(model)
    has_input = input_size is not None or input_data is not None
    shown = (ColumnSettings.OUTPUT_SIZE, ColumnSettings.NUM_PARAMS) if has_input else (ColumnSettings.NUM_PARAMS,)
    columns = shown if col_names is None else tuple(ColumnSettings(name) for name in col_names)
    rows = {RowSettings.DEPTH} if row_settings is None else {RowSettings(name) for name in row_settings}
    chosen = Mode(mode or Mode.EVAL)
    train = None if chosen == Mode.SAME else chosen == Mode.TRAIN
    if verbose is None:
        verbose = Verbosity.QUIET if getattr(sys, "ps1", None) else Verbosity.DEFAULT
    where = None if device is None else torch.device(device)
    _check(input_size, input_data, columns, col_width, verbose)
    if not has_input:
        inputs, layers = Inputs(), static_layers(model)
    else:
        inputs = from_data(input_data) if input_size is None else from_size(input_size, dtypes, batch_dim)
        layers = _layers(model, inputs, kwargs, batch_dim, train, where, keep=bool(cache_forward_pass))
    formatting = FormattingOptions(depth, verbose, columns, col_width, rows)
    results = ModelStatistics(layers, inputs.sizes, inputs.nbytes, formatting)
    if verbose > Verbosity.QUIET:
        print(results)
    return results


def clear_cached_forward_pass() -> None:
    _cached.clear()


def _check(size: object, data: object, columns: tuple[ColumnSettings, ...], col_width: int, verbose: int) -> None:
    if col_width <= 0:
        raise ValueError(f"col_width must be greater than 0, not {col_width}")
    if verbose not in tuple(Verbosity):
        raise ValueError(f"verbose is 0 (quiet), 1 (the default) or 2 (weights and biases too), not {verbose}")
    if size is not None and data is not None:
        raise RuntimeError("give input_data or input_size, not both")
    missing = REQUIRES_INPUT.intersection(columns) if size is None and data is None else ()
    if missing:
        names = ", ".join(sorted(column.value for column in missing))
        raise ValueError(f"without input_data or input_size there are no columns {names}")


def _layers(
    model: nn.Module,
    inputs: Inputs,
    kwargs: dict[str, object],
    batch_dim: int | None,
    train: bool | None,
    device: torch.device | None,
    *,
    keep: bool,
) -> list[LayerInfo]:
    modes = [module.training for module in model.modules()] if train is None else train
    key = (id(model), str(inputs.sizes), inputs.nbytes, str(from_data(kwargs).sizes), batch_dim, str(modes))
    if keep and key in _cached:
        return _cached[key][1]
    calls = LayerCalls(batch_dim)
    keywords = inputs.kwargs | kwargs
    try:
        layers = called_layers(model, inputs.args, keywords, calls, train=train, device=device)
    except TorchgaugeError as error:
        executed = [layer for layer in calls.layers if layer.executed]
        raise RuntimeError(f"{error}. Executed layers up to: {executed}") from error
    if keep:
        _cached[key] = (model, layers)
    return layers
