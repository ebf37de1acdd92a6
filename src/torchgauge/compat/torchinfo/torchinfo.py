"""`summary`: the layers of a model in the order they were called, with the containers that hold them, as a table."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from torchgauge.compat.observed import Observer, OpCall, observe, require_module
from torchgauge.compat.torchinfo.enums import ColumnSettings, Mode, RowSettings, Verbosity
from torchgauge.compat.torchinfo.formatting import FormattingOptions
from torchgauge.compat.torchinfo.layer_info import LayerInfo
from torchgauge.compat.torchinfo.model_statistics import ModelStatistics
from torchgauge.errors import TorchgaugeError
from torchgauge.nested import leaves
from torchgauge.registry import grouped
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
        raise RuntimeError(f"input_data must be a tensor, a list of arguments or a dict of keywords, not {data!r}")
    found: list[torch.Tensor] = []
    _mapped(data, found.append)
    nbytes = sum(int(tensor.nbytes) for tensor in found)
    return Inputs(args, kwargs, _mapped(data, lambda tensor: torch.Size(tensor.shape)), nbytes)


def from_size(size: object, dtypes: Sequence[object] | None, batch_dim: int | None) -> Inputs:
    """Tensors of one size or several; a batch of one is inserted at `batch_dim`."""
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
    """One size or several, as a list of sizes."""
    if not isinstance(size, list | tuple):
        raise TypeError(f"input_size must be a tuple of numbers or a list of them, not a {type(size).__name__}")
    if not size or any(number <= 0 for number in leaves(size)):
        raise ValueError(f"input_size must have positive numbers: {size}")
    if isinstance(size[0], list | tuple):
        return list(size)
    return [tuple(size) if isinstance(size, list) else size]


def _mapped(data: Any, action: Callable[[Any], Any]) -> Any:
    """The structure with `action` applied to every tensor and array."""
    if isinstance(data, torch.Tensor | np.ndarray):
        return action(data)
    if isinstance(data, Mapping):
        return {name: _mapped(item, action) for name, item in data.items()}
    if isinstance(data, list | tuple):
        items = [_mapped(item, action) for item in data]
        return tuple(items) if isinstance(data, tuple) else items
    return data


Measured = tuple[list[int], int]
NOTHING: Measured = ([], 0)


def measure(value: object, batch_dim: int | None) -> Measured:
    """Size, and bytes of an element; the batch size is shown as 1 where `batch_dim` names the dimension."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, str | type):
        raise TypeError(f"a layer returned {value!r}, which is not a tensor and holds none")
    if isinstance(value, Mapping):
        value = list(value.values())[-1:]
    size, element_bytes = _first(value)
    if batch_dim is not None and batch_dim < len(size):
        size = [*size[:batch_dim], 1, *size[batch_dim + 1 :]]
    return size, element_bytes


def _tensor(value: torch.Tensor) -> Measured:
    return list(value.size()), value.element_size()


def _first(value: object) -> Measured:
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        return list(value.shape), value.itemsize
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return _tensor(value.data)
    if isinstance(value, torch.distributions.Distribution):
        return list(value.batch_shape + value.event_shape), 0
    if hasattr(value, "tensors"):
        return _first(value.tensors)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value):
        return _first(value[0])
    return NOTHING


class LayerCalls(Observer):
    """A layer for every call of a module."""

    def __init__(self, batch_dim: int | None) -> None:
        self.layers: list[LayerInfo] = []
        self._batch_dim = batch_dim

    def begin(self, root: nn.Module) -> None:
        places = structure(root)
        self._places = grouped((place.layer_id, place) for place in places)
        # A script module is opaque: its inner calls are not seen.
        self.layers = [place for place in places if isinstance(place.module, torch.jit.ScriptModule)]
        # The running modules: row, and place in the structure.
        self._running: list[tuple[LayerInfo, LayerInfo]] = [(places[0], places[0])]

    def enter(self, module: nn.Module) -> None:
        layer, place = self._running[-1]  # a module of another model counts to its caller
        if id(module) in self._places:
            layer = place = self._place(module)
            if layer not in self.layers:
                layer = LayerInfo(place.var_name, module, place.depth, place.parent_info)
                self.layers.append(layer)
        self._running.append((layer, place))

    def _place(self, module: nn.Module) -> LayerInfo:
        """The place of a module that is nearest below the running one; several others may hold the module."""
        running = {place.layer_id for _, place in self._running}
        caller = self._running[-1][1]

        def distance(place: LayerInfo) -> float:
            """How many modules between the caller and the place have a forward that is not running."""
            between, holder = 0, place.parent_info
            while holder is not None and holder.layer_id not in running:
                between += type(holder.module).forward is not nn.Module.forward  # unlike that of a list
                holder = holder.parent_info
            return between if holder is caller else math.inf

        return min(self._places[id(module)], key=distance)

    def fail(self, module: nn.Module) -> None:
        self._running.pop()

    def leave(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        layer, _ = self._running.pop()
        if layer.module is not module or isinstance(module, torch.jit.ScriptModule):
            return
        layer.input_size, _ = measure(args, self._batch_dim)
        layer.dims, element_bytes = measure(output, self._batch_dim)
        # torchinfo shows a dict like this where the batch is given.
        is_nested = isinstance(output, Mapping) and self._batch_dim is not None
        layer.output_size = [layer.dims] if is_nested else layer.dims
        layer.output_bytes = element_bytes * prod(layer.dims)
        layer.executed = True

    def op(self, call: OpCall) -> None:
        self._running[-1][0].own_macs += call.macs


def called_layers(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    calls: LayerCalls,
    *,
    train: bool | None,
    device: torch.device | None,
) -> list[LayerInfo]:
    """The layers of one forward pass; if it fails, `calls` has those that ran."""
    observe(model, args, kwargs, calls, train=train, device=device)
    # Modules that are never called themselves, such as `nn.ModuleList`, put before the first layer they hold.
    found: list[LayerInfo] = []
    current: list[nn.Module] = []  # the modules the last layer is in, the layer included
    for layer in calls.layers:
        for depth, holder in enumerate(_holders(layer)):
            if current[depth : depth + 1] != [holder.module]:
                shown = LayerInfo(holder.var_name, holder.module, holder.depth, holder.parent_info)
                found.append(shown)
                current[depth:] = [holder.module]
        found.append(layer)
        if layer.depth:
            current[layer.depth - 1 :] = [layer.module]
    return _finished(found)


def static_layers(model: nn.Module) -> list[LayerInfo]:
    """All modules in the order they are registered, without a forward pass."""
    return _finished(structure(model))


def structure(model: nn.Module) -> list[LayerInfo]:
    """Every place of every module, parents first."""
    found = []
    waiting: list[LayerInfo] = [LayerInfo(type(model).__name__, model, 0)]
    while waiting:
        place = waiting.pop()
        found.append(place)
        inside = {above.layer_id for above in (place, *_holders(place))}
        children = [(name, child) for name, child in place.module._modules.items() if child is not None]
        waiting += [
            LayerInfo(name, child, place.depth + 1, place)
            for name, child in reversed(children)
            if id(child) not in inside
        ]
    return found


def _holders(layer: LayerInfo) -> list[LayerInfo]:
    """The containers of a layer, outermost first, without the root and the layer."""
    found: list[LayerInfo] = []
    above = layer.parent_info
    while above is not None and above.depth > 0:
        found.insert(0, above)
        above = above.parent_info
    return found


def _finished(layers: list[LayerInfo]) -> list[LayerInfo]:
    seen = {layer.layer_id for layer in layers if layer.executed}
    shown: set[int] = set()
    numbers: dict[int, int] = {}
    for index, layer in enumerate(layers):
        layer.is_recursive = layer.layer_id in shown or (not layer.executed and layer.layer_id in seen)
        shown.add(layer.layer_id)
        layer.depth_index = numbers[layer.depth] = numbers.get(layer.depth, 0) + 1
        end = next((i for i in range(index + 1, len(layers)) if layers[i].depth <= layer.depth), len(layers))
        layer.children = layers[index + 1 : end]
        layer.count_params()
        layer.count_macs()
    shown = {param for layer in layers if layer.is_leaf_layer for param in layer.elements}
    for layer in layers:
        rest = layer.elements.keys() - shown
        rest.difference_update(*(child.elements for child in layer.children if not child.is_leaf_layer))
        layer.leftover = rest
        layer.macs = layer.own_macs + sum(child.own_macs for child in layer.children)
    return layers


REQUIRES_INPUT = {ColumnSettings.INPUT_SIZE, ColumnSettings.OUTPUT_SIZE, ColumnSettings.MULT_ADDS}

# For `cache_forward_pass`: layers by the model and everything that affects them; the model is kept, so that no other
# gets its id.
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

    The forward pass runs on tensors without values; the model is not moved or changed. `input_size` includes the batch
    unless `batch_dim` says where to insert it; without any input only names and parameters are shown. `kwargs` are
    passed to the model's forward.
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
    if col_width <= 0:
        raise ValueError(f"col_width must be greater than 0, not {col_width}")
    if verbose not in tuple(Verbosity):
        raise ValueError(f"verbose must be 0 (quiet), 1 (default) or 2 (weights and biases too), not {verbose}")
    if input_size is not None and input_data is not None:
        raise RuntimeError("give input_data or input_size, not both")
    missing = sorted(column.value for column in REQUIRES_INPUT.intersection(columns))
    if missing and not has_input:
        raise ValueError(f"the columns {', '.join(missing)} need input_data or input_size")
    if not has_input:
        inputs, layers = Inputs(), static_layers(model)
    else:
        inputs = from_data(input_data) if input_size is None else from_size(input_size, dtypes, batch_dim)
        modes = [module.training for module in model.modules()] if train is None else train
        key = (id(model), str(inputs.sizes), inputs.nbytes, str(from_data(kwargs).sizes), batch_dim, str(modes))
        if cache_forward_pass and key in _cached:
            layers = _cached[key][1]
        else:
            calls = LayerCalls(batch_dim)
            try:
                layers = called_layers(model, inputs.args, inputs.kwargs | kwargs, calls, train=train, device=where)
            except TorchgaugeError as error:
                executed = [layer for layer in calls.layers if layer.executed]
                raise RuntimeError(f"{error}. Executed layers up to: {executed}") from error
            if cache_forward_pass:
                _cached[key] = (model, layers)
    formatting = FormattingOptions(depth, verbose, columns, col_width, rows)
    results = ModelStatistics(layers, inputs.sizes, inputs.nbytes, formatting)
    if verbose > Verbosity.QUIET:
        print(results)
    return results


def clear_cached_forward_pass() -> None:
    _cached.clear()
