"""The layers of a model in the order they were called, with the containers that hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import torch
from torch import nn

from torchgauge.compat.observed import Observer, OpCall, observe
from torchgauge.compat.torchinfo.layer_info import LayerInfo

Measured = tuple[list[int], int]
NOTHING: Measured = ([], 0)


def measure(value: object, batch_dim: int | None) -> Measured:
    """Size, and bytes of an element; the size of the batch is given as 1 where `batch_dim` says which it is."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, str | type):
        raise TypeError(f"a layer gave {value!r}: neither a tensor nor something that holds one")
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
        self._places: dict[int, list[LayerInfo]] = {}
        for place in places:
            self._places.setdefault(place.layer_id, []).append(place)
        # A script module is opaque: its inner calls are not seen.
        self.layers = [place for place in places if isinstance(place.module, torch.jit.ScriptModule)]
        # What is running: its row, and its place in the structure.
        self._running: list[tuple[LayerInfo, LayerInfo]] = [(places[0], places[0])]

    def enter(self, module: nn.Module) -> None:
        layer, place = self._running[-1]  # a stranger's work is its caller's
        if id(module) in self._places:
            layer = place = self._place(module)
            if layer not in self.layers:
                layer = LayerInfo(place.var_name, module, place.depth, place.parent_info)
                self.layers.append(layer)
        self._running.append((layer, place))

    def _place(self, module: nn.Module) -> LayerInfo:
        """Of a module that several others hold, the place nearest below the one that is running."""
        running = {place.layer_id for _, place in self._running}
        caller = self._running[-1][1]

        def strangeness(place: LayerInfo) -> float:
            """How many modules lie between the caller and the place that have a forward and are not running it."""
            between, holder = 0, place.parent_info
            while holder is not None and holder.layer_id not in running:
                between += type(holder.module).forward is not nn.Module.forward  # unlike that of a list
                holder = holder.parent_info
            return between if holder is caller else math.inf

        return min(self._places[id(module)], key=strangeness)

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
    """The layers of one forward pass; `calls` holds those that ran if it fails."""
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
    """What holds a layer, from the root down, without the root and the layer."""
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
