"""Where the inputs of a script module's forward first meet a weight: it tells what they look like.

The graph knows this also where the layers are gone (frozen models) or have lost their attributes (traces).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchgauge.source.torchscript.lowering import lower

Undo = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Weight:
    """`name` is its path in the model; "" for a constant, which has none."""

    name: str
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class FirstUse:
    """`arguments` are those of the op that are plain values, by position; `undo` turns a tensor that the op takes into
    the input it was made from, the last change first."""

    op: str
    weight: Weight
    arguments: tuple[Any, ...]
    undo: tuple[Undo, ...]

    def input_for(self, taken: Tensor) -> Tensor:
        for change in self.undo:
            taken = change(taken)
        return taken.contiguous()


# Where each op has its data and its weight.
_OPERANDS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(
        ("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::_convolution", "aten::convolution"), (0, 1)
    ),
    **dict.fromkeys(("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"), (0, 1)),
    **dict.fromkeys(("aten::linear", "aten::matmul", "aten::mm", "aten::batch_norm"), (0, 1)),
    **dict.fromkeys(("aten::embedding", "aten::embedding_bag"), (1, 0)),
    **dict.fromkeys(("aten::layer_norm", "aten::group_norm", "aten::lstm", "aten::gru"), (0, 2)),
    **dict.fromkeys(("aten::rnn_tanh", "aten::rnn_relu"), (0, 2)),
    "aten::addmm": (1, 2),
}
# They change neither the number of dimensions nor the last ones: scaling, casting, padding of a size that is kept.
_KEEPS = frozenset(
    f"{namespace}::{name}"
    for namespace, names in (
        ("aten", ("to", "type_as", "contiguous", "clone", "detach", "alias", "float", "half", "add", "sub", "rsub",
                  "mul", "div", "add_", "sub_", "mul_", "div_", "pow", "abs", "exp", "log", "log1p", "sqrt", "relu",
                  "sigmoid", "tanh", "clamp", "dropout", "dropout_", "feature_dropout", "view", "reshape", "flatten",
                  "_unwrap_optional")),
        ("prim", ("unchecked_cast", "unchecked_unwrap_optional", "Guard")),
    )
    for name in names
)  # fmt: skip


def first_uses(module: torch.jit.ScriptModule) -> dict[str, FirstUse]:
    """For each parameter of forward that reaches a weight: how. Names are those of the schema."""
    script: Any = module._c
    if not script._has_method("forward"):
        return {}
    method = script._get_method("forward")
    walk = _Walk(lower(method.graph, frozenset()), script)
    names = [argument.name for argument in method.schema.arguments]
    return {names[position]: use for position, use in sorted(walk.found.items())}


class _Walk:
    """One pass over the nodes in their order, through all branches; values are known by their names in the graph."""

    def __init__(self, graph: Any, script: Any) -> None:
        owner, *inputs = graph.inputs()
        self.found: dict[int, FirstUse] = {}
        self._objects: dict[str, tuple[str, Any]] = {owner.debugName(): ("", script)}
        self._weights: dict[str, Weight] = {}
        self._flows: dict[str, tuple[int, tuple[Undo, ...]]] = {
            value.debugName(): (position, ()) for position, value in enumerate(inputs, 1)
        }
        self._block(graph)

    def _block(self, block: Any) -> None:
        for node in block.nodes():
            kind = node.kind()
            if kind == "prim::Constant":
                self._constant(node)
            elif kind == "prim::GetAttr":
                self._attribute(node)
            elif kind in _OPERANDS:
                self._use(node, *_OPERANDS[kind])
            else:
                self._pass_on(node, kind)
                self._inner(node)

    def _inner(self, node: Any) -> None:
        for block in node.blocks():
            self._block(block)
            for outside, inside in zip(node.outputs(), block.outputs(), strict=False):
                if node.kind() == "prim::If":
                    self._same(outside, inside)

    def _constant(self, node: Any) -> None:
        value = node.output()
        if value.type().kind() == "TensorType" and isinstance(held := value.toIValue(), Tensor):
            self._weights[value.debugName()] = Weight("", held)

    def _attribute(self, node: Any) -> None:
        path, owner = self._objects.get(node.input().debugName(), ("", None))
        name = node.s("name")
        if owner is None or not owner.hasattr(name):
            return
        value, place = owner.getattr(name), f"{path}.{name}".lstrip(".")
        if isinstance(value, Tensor):
            self._weights[node.output().debugName()] = Weight(place, value)
        elif isinstance(value, torch._C.ScriptModule):
            self._objects[node.output().debugName()] = (place, value)

    def _use(self, node: Any, data: int, weight: int) -> None:
        inputs = list(node.inputs())
        flow, held = self._flows.get(inputs[data].debugName()), self._weight(inputs[weight])
        if flow is None or held is None:
            return
        position, undo = flow
        arguments = tuple(plain_value(value) for value in inputs)
        self.found.setdefault(position, FirstUse(node.kind(), held, arguments, undo))

    def _weight(self, value: Any) -> Weight | None:
        """The weight itself, or the first of the list that an RNN is given."""
        if value.node().kind() == "prim::ListConstruct":
            return next((held for item in value.node().inputs() if (held := self._weight(item))), None)
        return self._weights.get(value.debugName())

    def _pass_on(self, node: Any, kind: str) -> None:
        inputs = list(node.inputs())
        if not inputs or node.outputsSize() != 1:
            return
        if kind in _KEEPS:
            for value in inputs[:2]:
                self._same(node.output(), value)
        elif kind == "aten::t" and (held := self._weights.get(inputs[0].debugName())) is not None:
            self._weights[node.output().debugName()] = Weight(held.name, held.tensor.detach().t())
        elif kind in _UNDONE and (flow := self._flows.get(inputs[0].debugName())) is not None:
            change = _UNDONE[kind](*(plain_value(value) for value in inputs[1:]))
            if change is not None:
                self._flows[node.output().debugName()] = (flow[0], (change, *flow[1]))

    def _same(self, made: Any, source: Any) -> None:
        tables: tuple[dict[str, Any], ...] = (self._flows, self._weights)
        for known in tables:
            if source.debugName() in known:
                known.setdefault(made.debugName(), known[source.debugName()])


def plain_value(value: Any) -> Any:
    """A number, or a list of such, that the graph holds; None for what is made while it runs."""
    node = value.node()
    if node.kind() == "prim::ListConstruct":
        items = [plain_value(item) for item in node.inputs()]
        return None if None in items else items
    if node.kind() != "prim::Constant" or value.type().kind() not in ("IntType", "BoolType", "ListType"):
        return None
    return value.toIValue()


def _untransposed(first: Any, second: Any) -> Undo | None:
    return None if first is None or second is None else lambda tensor: tensor.transpose(first, second)


def _unpermuted(order: Any) -> Undo | None:
    if order is None:
        return None
    places = [axis % len(order) for axis in order]
    back = [places.index(axis) for axis in range(len(places))]
    return lambda tensor: tensor.permute(back)


def _squeezed(dim: Any) -> Undo | None:
    return None if dim is None else lambda tensor: tensor.squeeze(dim)


_UNDONE: dict[str, Callable[..., Undo | None]] = {
    "aten::transpose": _untransposed,
    "aten::permute": _unpermuted,
    "aten::unsqueeze": _squeezed,
}
