"""One layer of the summary: a call of a module, or a module that only holds others."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchgauge.compat.torchinfo.enums import ColumnSettings

NO_VALUE = "--"
RECURSIVE = "(recursive)"


class LayerInfo:
    """`own_macs` are the multiply-adds of the ops that ran in this call and in none of the layers below it."""

    def __init__(self, var_name: str, module: nn.Module, depth: int, parent_info: LayerInfo | None = None) -> None:
        self.var_name = var_name
        self.module = module
        self.depth = depth
        self.parent_info = parent_info
        self.layer_id = id(module)
        scripted = isinstance(module, torch.jit.ScriptModule)
        self.class_name = str(module.original_name) if scripted else type(module).__name__
        self.is_leaf_layer = not any(module.children())
        size: Any = getattr(module, "kernel_size", None)
        if isinstance(size, torch.Tensor):
            size = size.tolist()
        elif isinstance(size, Iterable):
            size = list(size)
        elif size is not None and not isinstance(size, int):
            raise TypeError(f"kernel_size of {self.class_name} is a {type(size).__name__}, not a number or a tuple")
        self.kernel_size: int | list[int] | None = size
        groups = getattr(module, "groups", None)
        self.groups = groups if isinstance(groups, int) else None
        self.inner_layers: dict[str, dict[ColumnSettings, str]] = {}
        self.children: list[LayerInfo] = []
        self.depth_index: int | None = None
        self.executed = self.is_recursive = self.contains_lazy_param = False
        self.input_size: list[int] = []
        self.output_size: list[Any] = []
        self.dims: list[int] = []  # of the output, however `output_size` shows them
        self.output_bytes = self.num_params = self.trainable_params = self.param_bytes = 0
        self.macs = self.own_macs = 0
        self.elements: dict[int, int] = {}  # by the id of the parameter: how many of its elements count
        self.trainable_ids: set[int] = set()
        self.leftover: set[int] = set()  # ids of parameters that no other row shows

    def __repr__(self) -> str:
        return f"{self.class_name}: {self.depth}"

    @property
    def trainable(self) -> str:
        if self.num_params == 0:
            return NO_VALUE
        if self.trainable_params == 0:
            return "False"
        return "True" if self.trainable_params == self.num_params else "Partial"

    def get_layer_name(self, show_var_name: bool, show_depth: bool) -> str:
        name = self.class_name
        if show_var_name and self.var_name:
            name += f" ({self.var_name})"
        if show_depth and self.depth > 0:
            name += f": {self.depth}" + ("" if self.depth_index is None else f"-{self.depth_index}")
        return name

    def count_params(self) -> None:
        shown: list[tuple[str, list[int], int]] = []
        for name, param in self.module.named_parameters():
            if is_lazy(param):
                self.contains_lazy_param = True
                continue
            count, name = kept_elements(self.module, name, param)
            self.elements[id(param)] = count
            self.num_params += count
            if param.requires_grad:
                self.trainable_ids.add(id(param))
                self.trainable_params += count
            self.param_bytes += count * param.element_size()
            # The whole model's own row does not repeat what its layers show.
            if self.parent_info is not None or "." not in name:
                shape = list(param.size())
                if name == "weight" and len(shape) > 1:  # input before output channels
                    shape[:2] = shape[1], shape[0]
                shown.append((name, shape, count))
        for index, (name, shape, count) in enumerate(shown, start=1):
            bar = "└─" if index == len(shown) else "├─"
            self.inner_layers[name] = {
                ColumnSettings.KERNEL_SIZE: str(shape),
                ColumnSettings.NUM_PARAMS: f"{bar}{count:,}",
            }

    def count_macs(self) -> None:
        """This layer's own multiply-adds as torchinfo understands them: those of the weights, and one per element a
        bias is added to. Weights that multiply nothing the project counts as a product (those of a norm) count once per
        sample. Those of the layers below it are added by the caller."""
        if self.is_leaf_layer and self.executed:
            module, dims = self.module, self.dims
            counted = [(*kept_elements(module, *named), named[1].numel()) for named in module.named_parameters()]
            biases = sum(count for count, name, _ in counted if _is_bias(name))
            weights = [(count, numel) for count, name, numel in counted if not _is_bias(name) and "weight" in name]
            left, whole = sum(count for count, _ in weights), sum(numel for _, numel in weights)
            if self.own_macs:
                products = self.own_macs * left // whole if whole else self.own_macs
                # The number of positions at which the output is computed from the weights.
                channels = getattr(module, "out_channels", None) or (dims or [1])[-1]
                self.own_macs = products + biases * (prod(dims) // channels if channels else 0)
            elif not isinstance(module, nn.Embedding | nn.EmbeddingBag):  # a look-up multiplies nothing
                self.own_macs = (biases + left) * prod(dims[:1])
        self.macs = self.own_macs

    def macs_to_str(self, reached_max_depth: bool) -> str:
        macs = self.macs if reached_max_depth or self.is_leaf_layer else self.own_macs
        return f"{macs:,}" if macs > 0 else NO_VALUE

    def num_params_to_str(self, reached_max_depth: bool) -> str:
        if self.num_params == 0:
            return NO_VALUE
        if self.is_recursive:
            return RECURSIVE
        if reached_max_depth or self.is_leaf_layer:
            return f"{self.num_params:,}" if self.trainable_params else f"({self.num_params:,})"
        leftover = self.leftover_params()
        return f"{leftover:,}" if leftover > 0 else NO_VALUE

    def params_percent(self, total_params: int, reached_max_depth: bool, precision: int = 2) -> str:
        whole = reached_max_depth or self.is_leaf_layer
        params = self.num_params if whole else self.leftover_params()
        if total_params == 0:
            return f"{'':5}{NO_VALUE}"
        if self.is_recursive:
            return RECURSIVE
        return f"{params / total_params:>{precision + 5}.{precision}%}" if params else f"{'':5}{NO_VALUE}"

    def leftover_params(self) -> int:
        """Parameters that no other row shows: of the layer itself, and of layers that were not called."""
        return sum(self.elements[param] for param in self.leftover)

    def leftover_trainable_params(self) -> int:
        return sum(self.elements[param] for param in self.leftover & self.trainable_ids)


def kept_elements(module: nn.Module, name: str, param: torch.Tensor) -> tuple[int, str]:
    """Elements that pruning has left, and the name without the suffix pruning gives."""
    plain = name.removesuffix("_orig")
    mask: Any = module
    for part in f"{plain}_mask".split(".") if plain != name else ():
        mask = getattr(mask, part, None)
    return (int(mask.sum()), plain) if isinstance(mask, torch.Tensor) else (param.numel(), name)


def _is_bias(name: str) -> bool:
    return name.startswith("bias") or name.endswith("bias")
