"""Inputs of a script module: the sizes that a trace was made with, or the first use of each input in the graph.

The graph shows which weight an input meets first, even if the layers are gone (frozen models) or have lost their
attributes (traces).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from torchgauge.source.candidate import (
    Assignment,
    Defaults,
    ForwardSignature,
    Guess,
    companion,
    is_companion,
    make_tensor,
)
from torchgauge.source.first_layer import TRACED_LENGTHS, suggest
from torchgauge.source.torchscript.graphs import lower

_MAX_GUESSES = 8
_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Bool": torch.bool, "Byte": torch.uint8,
}  # fmt: skip


def script_assignments(
    model: nn.Module, signature: ForwardSignature, defaults: Defaults, given: Collection[str]
) -> Iterator[Assignment]:
    """Empty for a model that is not a script module, or whose inputs reach no weight that implies their shape."""
    if not isinstance(model, torch.jit.ScriptModule):
        return
    parameters = list(signature.required(given))
    if defaults.batch == 1 and defaults.seq is None:
        # A live trace still has the shapes of its example; a saved one does not.
        method = model._c._get_method("forward") if model._c._has_method("forward") else None
        names = [argument.name for argument in method.schema.arguments] if method is not None else []
        values = dict(zip(names, method.graph.inputs(), strict=True)) if method is not None else {}
        examples: Assignment = {}
        for parameter in parameters:
            kind: Any = values[parameter.name].type()
            if kind.kind() == "TensorType" and kind.sizes() is not None and kind.scalarType() in _DTYPES:
                tensor = make_tensor(tuple(kind.sizes()), _DTYPES[kind.scalarType()])
                examples[parameter.name] = Guess(tensor, "the example that the trace was made with")
        if examples and len(examples) == len(parameters):
            yield examples
    uses = first_uses(model)
    positions = _positions(model)
    known = {
        parameter.name: list(islice(_guesses(uses[parameter.name], defaults, positions), _MAX_GUESSES))
        for parameter in parameters
        if parameter.name in uses
    }
    main = next((p for p in parameters if known.get(p.name)), None)
    if main is None:
        return
    for index, guess in enumerate(known[main.name]):
        assignment: Assignment = {}
        for parameter in parameters:
            own = known.get(parameter.name)
            if own:
                assignment[parameter.name] = own[min(index, len(own) - 1)]
            elif is_companion(parameter):
                assignment[parameter.name] = companion(model, parameter, main.name, guess.value, defaults)
            else:
                assignment[parameter.name] = Guess(guess.value.clone(), f"the same as {main.name}")
        yield assignment


# Layers to which all dimensions but the last are alike.
_ALIKE = ("Linear", "LayerNorm")
# Longer tables are those of models that are traced with shorter sequences.
_MAX_POSITIONS = 4096


def _positions(model: nn.Module) -> list[int]:
    """The rows of tables of positions: a trace may only run with a sequence of that length."""
    tables = (tensor for name, tensor in model.named_parameters() if "pos" in name.lower() and tensor.dim() >= 2)
    return sorted({rows for table in tables if 1 < (rows := int(table.shape[-2])) <= _MAX_POSITIONS})[:2]


def _guesses(use: FirstUse, defaults: Defaults, positions: Collection[int]) -> Iterator[Guess]:
    layer_type, attributes = _layer(use)
    if not layer_type:
        return
    name = f"'{use.weight.name}'" if use.weight.name else "a constant"
    says, tensors = suggest(layer_type, SimpleNamespace(**attributes), defaults)
    if layer_type == "Embedding" and defaults.seq is None:
        lengths = dict.fromkeys((TRACED_LENGTHS[0], *positions, *TRACED_LENGTHS[1:]))
        tensors = chain((defaults.ids(defaults.batch, length) for length in lengths), tensors)
    for tensor in tensors:
        found = use.input_for(tensor)
        if layer_type in _ALIKE and tensor.dim() > 2 and found.shape[0] != tensor.shape[0]:
            found = use.input_for(tensor.transpose(0, 1))  # the model itself moves the batch away from the front
        yield Guess(found, f"{use.op} with {name} {says}")


def _layer(use: FirstUse) -> tuple[str, dict[str, object]]:
    """The class of layer that runs the op, and the attributes implied by its weight; "" if unknown."""
    shape = tuple(use.weight.tensor.shape)
    match use.op.removeprefix("aten::"):
        case "_convolution" | "convolution" | "conv1d" | "conv2d" | "conv3d" if len(shape) in (3, 4, 5):
            general = use.op in ("aten::_convolution", "aten::convolution")
            if general and use.arguments[6] is True:
                return "ConvTranspose2d", {"in_channels": shape[0], "kernel_size": shape[2:]}
            groups = use.arguments[8 if general else 6]
            factor = groups if isinstance(groups, int) and groups else 1
            return f"Conv{len(shape) - 2}d", {"in_channels": shape[1] * factor}
        case "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d":
            return "ConvTranspose2d", {"in_channels": shape[0], "kernel_size": shape[2:]}
        case "embedding" | "embedding_bag":
            return "Embedding", {"num_embeddings": shape[0]}
        case "linear" if len(shape) == 2:
            return "Linear", {"in_features": shape[1]}
        case "matmul" | "mm" | "addmm" if len(shape) == 2:
            return "Linear", {"in_features": shape[0]}
        case "lstm" | "gru" | "rnn_tanh" | "rnn_relu":
            return "LSTM", {"input_size": shape[-1], "batch_first": use.arguments[-1] is True}
        case "layer_norm":
            return "LayerNorm", {"normalized_shape": shape}
        case "group_norm":
            return "GroupNorm", {"num_channels": shape[0]}
        case "batch_norm":
            return "BatchNorm2d", {"num_features": shape[0]}
    return "", {}


Undo = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Weight:
    """`name` is its path in the model; "" for a constant."""

    name: str
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class FirstUse:
    """`arguments` are the plain values among the arguments of the op, by position; `undo` transforms the tensor that
    the op takes back into the input, the last change first."""

    op: str
    weight: Weight
    arguments: tuple[object, ...]
    undo: tuple[Undo, ...]

    def input_for(self, taken: Tensor) -> Tensor:
        for change in self.undo:
            taken = change(taken)
        return taken.contiguous()


# The positions of the data and the weight among the arguments.
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
# Ops that keep the number of dimensions and the last dimensions: scaling, casting, activations.
_KEEPS = frozenset(
    f"{namespace}::{name}"
    for namespace, names in (
        ("aten", ("to", "type_as", "contiguous", "clone", "detach", "alias", "float", "half", "add", "sub", "rsub",
                  "mul", "div", "add_", "sub_", "mul_", "div_", "pow", "abs", "exp", "log", "log1p", "sqrt", "relu",
                  "sigmoid", "tanh", "clamp", "dropout", "dropout_", "feature_dropout", "view",
                  "view_as", "reshape", "reshape_as", "flatten",
                  "_unwrap_optional")),
        ("prim", ("unchecked_cast", "unchecked_unwrap_optional", "Guard")),
    )
    for name in names
)  # fmt: skip

_NORMS = ("aten::batch_norm", "aten::layer_norm", "aten::group_norm")
_MOVES = ("aten::transpose", "aten::permute", "aten::unsqueeze")


def first_uses(module: torch.jit.ScriptModule) -> dict[str, FirstUse]:
    """The first use of each parameter of forward that reaches a weight, by its name in the schema."""
    script: Any = module._c
    if not script._has_method("forward"):
        return {}
    method = script._get_method("forward")
    walk = _Walk(lower(method.graph, frozenset()), script)
    names = [argument.name for argument in method.schema.arguments]
    return {names[position]: use for position, use in sorted(walk.found.items())}


class _Walk:
    """One pass over the nodes in order, through all branches; values are identified by their names in the graph."""

    def __init__(self, graph: torch._C.Graph, script: Any) -> None:
        owner, *inputs = graph.inputs()
        self.found: dict[int, FirstUse] = {}
        self._objects: dict[str, tuple[str, Any]] = {owner.debugName(): ("", script)}
        self._weights: dict[str, Weight] = {}
        self._squeezes: set[Undo] = set()
        self._flows: dict[str, tuple[int, tuple[Undo, ...]]] = {
            value.debugName(): (position, ()) for position, value in enumerate(inputs, 1)
        }
        self._block(graph)

    def _block(self, block: torch._C.Block | torch._C.Graph) -> None:
        for node in block.nodes():
            kind = node.kind()
            if kind == "prim::Constant":
                value = node.output()
                if value.type().kind() == "TensorType" and isinstance(held := value.toIValue(), Tensor):
                    self._weights[value.debugName()] = Weight("", held)
            elif kind == "prim::GetAttr":
                self._attribute(node)
            elif kind in _OPERANDS:
                self._use(node, *_OPERANDS[kind])
            else:
                self._pass_on(node, kind)
                for inner in node.blocks():
                    self._block(inner)
                if kind == "prim::If":
                    for outside, *insides in zip(node.outputs(), *(b.outputs() for b in node.blocks()), strict=True):
                        for inside in sorted(insides, key=self._added_dimensions):
                            self._same(outside, inside)

    def _added_dimensions(self, value: torch._C.Value) -> int:
        """The branch that adds a dimension is for inputs without a batch."""
        _, undo = self._flows.get(value.debugName(), (0, ()))
        return sum(change in self._squeezes for change in undo)

    def _attribute(self, node: torch._C.Node) -> None:
        path, owner = self._objects.get(node.input().debugName(), ("", None))
        name, kind = node.s("name"), node.output().type()
        # Others are not weights, and torch looks for the class of an enum in Python.
        may_be_weight = kind.kind() in ("TensorType", "ClassType", "InterfaceType") or str(kind) == "Optional[Tensor]"
        if owner is None or not may_be_weight or not owner.hasattr(name):
            return
        value, place = owner.getattr(name), f"{path}.{name}".lstrip(".")
        if isinstance(value, Tensor):
            self._weights[node.output().debugName()] = Weight(place, value)
        elif isinstance(value, torch._C.ScriptModule):
            self._objects[node.output().debugName()] = (place, value)

    def _use(self, node: torch._C.Node, data: int, weight: int) -> None:
        inputs = list(node.inputs())
        flow, held = self._flows.get(inputs[data].debugName()), self._weight(inputs[weight])
        if flow is None and node.kind() in _NORMS:
            self._same(node.output(), inputs[data])  # of a weight, as of a convolution with standardised weights
        if flow is None or held is None:
            return
        position, undo = flow
        arguments = tuple(plain_value(value) for value in inputs)
        self.found.setdefault(position, FirstUse(node.kind(), held, arguments, undo))

    def _weight(self, value: torch._C.Value) -> Weight | None:
        """The weight itself, or the first of the list that an RNN takes."""
        if value.node().kind() == "prim::ListConstruct":
            return next((held for item in value.node().inputs() if (held := self._weight(item))), None)
        return self._weights.get(value.debugName())

    def _pass_on(self, node: torch._C.Node, kind: str) -> None:
        inputs = list(node.inputs())
        if not inputs or node.outputsSize() != 1:
            return
        if kind in _KEEPS:
            for value in inputs[:2]:
                self._same(node.output(), value)
        elif kind == "aten::t" and (held := self._weights.get(inputs[0].debugName())) is not None:
            self._weights[node.output().debugName()] = Weight(held.name, held.tensor.detach().t())
        elif kind in _MOVES and (flow := self._flows.get(inputs[0].debugName())) is not None:
            change = _undo(kind, *(plain_value(value) for value in inputs[1:]))
            if change is not None:
                if kind == "aten::unsqueeze":
                    self._squeezes.add(change)
                self._flows[node.output().debugName()] = (flow[0], (change, *flow[1]))

    def _same(self, made: torch._C.Value, source: torch._C.Value) -> None:
        tables: tuple[dict[str, Any], ...] = (self._flows, self._weights)
        for known in tables:
            if source.debugName() in known:
                known.setdefault(made.debugName(), known[source.debugName()])


def plain_value(value: torch._C.Value) -> Any:
    """A constant number or list of numbers; None for values that are computed at run time."""
    node = value.node()
    if node.kind() == "prim::ListConstruct":
        items = [plain_value(item) for item in node.inputs()]
        return None if None in items else items
    if node.kind() != "prim::Constant" or value.type().kind() not in ("IntType", "BoolType", "ListType"):
        return None
    return value.toIValue()


def _undo(kind: str, *arguments: Any) -> Undo | None:
    """The inverse of an op that moves dimensions; None if its arguments are not constants."""
    if any(argument is None for argument in arguments):
        return None
    if kind == "aten::transpose":
        return lambda tensor: tensor.transpose(*arguments)
    if kind == "aten::unsqueeze":
        return lambda tensor: tensor.squeeze(*arguments)
    (order,) = arguments
    places = [axis % len(order) for axis in order]
    return lambda tensor: tensor.permute([places.index(axis) for axis in range(len(places))])
