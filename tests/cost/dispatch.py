"""A minimal recorder: every op torch dispatches, as a `Call` built from its schema, with its assessment.

It runs for real. That makes the formulas meet the argument names of the schemas without going through the capture.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from torchgauge.cost import Assessment, Call, assess
from torchgauge.facts import COUNTED, Cost, TensorSpec


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[tuple[str, Assessment]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {argument.name: argument.default_value for argument in func._schema.arguments}
        given.update(zip(given, args, strict=False))
        given.update(kwargs)
        arguments = tree_map_only(torch.Tensor, _spec, given)
        inputs = {id(leaf): _spec(leaf) for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)}
        result = func(*args, **kwargs)
        outputs = tuple(_spec(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        tags = frozenset(str(tag).removeprefix("Tag.") for tag in func.tags)
        call = Call(func._schema.name, arguments, outputs, tuple(inputs.values()), tags)
        self.ops.append((call.op, assess(call)))
        return result

    @property
    def total(self) -> Cost:
        return sum((found.cost for _, found in self.ops), Cost())

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.ops}

    @property
    def uncounted(self) -> set[str]:
        return {name for name, found in self.ops if found.status not in (COUNTED, "free")}


def _spec(tensor: torch.Tensor) -> TensorSpec:
    stride = None if tensor.is_contiguous() else tensor.stride()
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), stride)
